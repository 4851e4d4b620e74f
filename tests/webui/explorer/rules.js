// What breaks a rule of WCAG 2.2 (1.1.1, 1.3.1, 1.4.3, 2.4.6, 4.1.2) on the page as it stands, as sentences.
() => {
  const faults = [];
  const seen = (element) => {
    const box = element.getBoundingClientRect();
    return box.width > 0 && box.height > 0 && getComputedStyle(element).visibility === "visible";
  };
  const all = (selector) => [...document.querySelectorAll(selector)].filter(seen);
  const name = (element) =>
    element.getAttribute("aria-label") ||
    (element.labels && element.labels.length && element.labels[0].textContent) ||
    (element.getAttribute("aria-labelledby") &&
      document.getElementById(element.getAttribute("aria-labelledby")).textContent) ||
    (element.matches("button, [role=tab], summary") && element.textContent) ||
    "";
  for (const element of all(
    "button, select, input, summary, [role=img], [role=tree], [role=treeitem], [role=listbox], [role=option], [role=group], [role=tablist], [role=tab], [role=tabpanel], aside, section",
  ))
    if (!name(element).trim()) faults.push(`no name: ${element.outerHTML.slice(0, 80)}`);
  const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
  for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) faults.push(`twice: id ${id}`);
  for (const attribute of ["aria-controls", "aria-labelledby", "aria-activedescendant", "for"])
    for (const element of document.querySelectorAll(`[${attribute}]`))
      if (!document.getElementById(element.getAttribute(attribute))) faults.push(`${attribute} points nowhere`);
  if (all("h1").length !== 1) faults.push("one h1 expected");
  for (const element of all("[aria-hidden=true] button, [aria-hidden=true] [tabindex='0']"))
    faults.push("hidden, but can be focused");
  if (document.querySelectorAll(".ee-tree [tabindex='0']").length > 1)
    faults.push("one node in the order of tabs expected");
  for (const element of all(".ee-pane, .ee-answer, .ee-mask"))
    if (element.scrollHeight > element.clientHeight + 1 || element.scrollWidth > element.clientWidth + 1)
      if (element.tabIndex < 0 && !element.querySelector("[tabindex='0']"))
        faults.push(`scrolls, but not by keyboard: ${element.className}`);

  const channels = (colour) => {
    const found = /rgba?\(([^)]+)\)/.exec(colour);
    return found ? found[1].split(/[ ,/]+/).map(Number) : null;
  };
  const light = (colour) => {
    const [r, g, b] = colour.map((value) => {
      const share = value / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let one = element; one; one = one.parentElement) {
      if (one.matches("g.ee-node")) {
        const box = one.querySelector(".ee-box");
        const fill = box && channels(getComputedStyle(box).fill);
        if (fill && !(fill[3] === 0)) return fill.slice(0, 3);
      }
      const colour = channels(getComputedStyle(one).backgroundColor);
      if (colour && (colour[3] === undefined || colour[3] === 1)) return colour.slice(0, 3);
    }
    return [255, 255, 255];
  };
  const texts = document.createTreeWalker(document.querySelector(".ee"), NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (
      !texts.currentNode.data.trim() ||
      !seen(element) ||
      element.closest("option, .ee-blank, .ee-onstage, .ee-row, title")
    )
      continue;
    const style = getComputedStyle(element);
    const colour = channels(element.namespaceURI.endsWith("svg") ? style.fill : style.color);
    if (!colour) continue;
    const [a, b] = [light(colour.slice(0, 3)), light(behind(element))].sort((x, y) => y - x);
    const contrast = (a + 0.05) / (b + 0.05);
    if (contrast < 4.5)
      faults.push(
        `contrast ${contrast.toFixed(2)}: ${element.getAttribute("class")} “${texts.currentNode.data.slice(0, 20)}”`,
      );
  }
  return [...new Set(faults)];
};
