const EagleExplorer = {
  mount(element, data, options = {}) {
    const draw = () => {
      element.textContent = data.runs.map((run) => run.cycles.map((c) => c.pieces.join("")).join("")).join("\n\n");
    };
    draw();
    return {
      update(next) { data = next; draw(); },
      push(cycle) { data.runs[data.runs.length - 1].cycles.push(cycle); draw(); },
      destroy() { element.textContent = ""; },
    };
  },
};
