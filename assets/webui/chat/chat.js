// The page's own components. Each is a fixed element; what changes comes as a value, and is put in here, because the
// templates of the library would run what looks like code in them. All HTML comes escaped from the server.

const EagleChat = {
  // HTML that is replaced as a whole.
  html(element, props, watch) {
    const host = element.querySelector("[data-host]");
    const draw = () => {
      const value = props.value ?? "";
      if (host.innerHTML !== value) host.innerHTML = value;
    };
    draw();
    watch("value", draw);
  },

  // A conversation: only what has changed is touched, so that a selection survives, and the newest text stays in view.
  transcript(element, props, watch) {
    const host = element.querySelector("[data-host]");
    const shown = [];
    const empty = host.innerHTML;
    const part = (kind) => {
      const made = document.createElement("div");
      made.className = `ec-${kind}`;
      made.dir = "auto";
      return made;
    };
    const turn = () => {
      const made = document.createElement("article");
      made.className = "ec-turn";
      made.append(part("question"), part("answer"), part("figures"));
      return made;
    };
    const draw = () => {
      const { turns = [], live = false } = props.value ?? {};
      const follows = host.scrollHeight - host.scrollTop - host.clientHeight < 60;
      if (!turns.length) {
        shown.length = 0;
        host.innerHTML = empty;
        return;
      }
      if (!shown.length) host.replaceChildren();
      while (shown.length > turns.length) {
        shown.pop();
        host.lastElementChild.remove();
      }
      const grown = turns.length > shown.length;
      turns.forEach((texts, place) => {
        if (place >= shown.length) {
          shown.push([]);
          host.append(turn());
        }
        texts.forEach((text, index) => {
          if (shown[place][index] === text) return;
          shown[place][index] = text;
          host.children[place].children[index].innerHTML = text;
        });
        host.children[place].classList.toggle("ec-live", live && place === turns.length - 1);
      });
      host.setAttribute("aria-busy", String(live));
      if (follows || grown) host.scrollTop = host.scrollHeight;
    };
    draw();
    watch("value", draw);
    // A conversation ends with its page, so the browser asks before it goes.
    window.addEventListener("beforeunload", (event) => {
      if (shown.length) event.preventDefault();
    });
  },

  // The explorer: a new story is mounted, a known one gets its new cycles.
  explorer(element, props, watch) {
    const host = element.querySelector("[data-host]");
    let instance = null, story = null, told = 0, live = false;
    const draw = () => {
      const value = props.value;
      if (!value || !value.page) {
        instance?.destroy();
        instance = story = null;
        return;
      }
      if (value.id !== story) {
        instance?.destroy();
        const options = { live: value.live, theme: "host", tab: value.tab };
        instance = EagleExplorer.mount(host, JSON.parse(value.page), options);
        if (value.run) instance.attempt(() => instance.choose(value.run));
        [story, told, live] = [value.id, 0, value.live];
      } else if (live && !value.live) {
        instance.update(JSON.parse(value.page));
        live = false;
      }
      for (const cycle of value.cycles.slice(told)) instance.push(JSON.parse(cycle));
      told = Math.max(told, value.cycles.length);
    };
    draw();
    watch("value", draw);
  },

  // Two lanes of a comparison.
  lanes(element, props, watch) {
    const host = element.querySelector("[data-host]");
    const draw = () => {
      const lanes = props.value ?? [];
      while (host.children.length > lanes.length) host.lastElementChild.remove();
      lanes.forEach((lane, place) => {
        let box = host.children[place];
        if (!box) {
          box = document.createElement("section");
          box.className = "ec-lane";
          box.append(document.createElement("h2"), document.createElement("div"), document.createElement("div"));
          box.children[1].className = "ec-answer";
          box.children[1].dir = "auto";
          box.children[2].className = "ec-figures";
          host.append(box);
        }
        [lane.name, lane.answer, lane.figures].forEach((text, index) => {
          if (box.children[index].innerHTML !== text) box.children[index].innerHTML = text;
        });
        box.classList.toggle("ec-live", lane.live);
      });
    };
    draw();
    watch("value", draw);
  },

  // A file for the person: made here, so that none lies on the server.
  save(element, props, watch) {
    watch("value", () => {
      const file = props.value;
      if (!file || !file.text) return;
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([file.text], { type: file.type }));
      link.download = file.name;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    });
  },

  toggleTheme() {
    document.body.classList.toggle("dark");
  },
};
window.EagleChat = EagleChat;

// Escape stops the answer, wherever one is on the page; in an open menu it only closes that. Whether one is open is looked
// at before the menu itself hears of the key.
let inMenu = false;
document.addEventListener("keydown", (event) => {
  inMenu = event.target.closest?.("[aria-expanded=true]") != null;
}, true);
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || event.defaultPrevented || inMenu) return;
  for (const stop of document.querySelectorAll("button.ec-stop:not([disabled])")) if (stop.offsetParent) stop.click();
});
