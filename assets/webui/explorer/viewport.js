// The pane in which the tree lies: it scrolls, zooms, fits, and is dragged.

const ZOOMS = [0.35, 0.5, 0.65, 0.8, 1, 1.25, 1.6, 2];
const LEGIBLE = 0.8; // smaller than this only when asked for

class Viewport {
  // `onScroll`: what lies over the picture has to move with it.
  constructor(svg, onScroll) {
    this.svg = svg;
    this.scale = null; // null: as large as fits, but legible
    this.scrolled = false;
    const scroll = () => {
      this.scrolled = this.pane.scrollLeft !== 0 || this.pane.scrollTop !== 0;
      onScroll();
    };
    this.pane = make("div", { class: "ee-pane", onscroll: scroll, onpointerdown: (event) => this.drag(event) }, svg);
    this.pane.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    // The room is told by the observer: to ask for it while drawing would lay the whole page out twice.
    this.room = { width: 0, height: 0 };
    this.observer = new ResizeObserver(([entry]) => {
      this.room = entry.contentRect;
      this.resize();
    });
    this.observer.observe(this.pane);
  }

  destroy() {
    this.observer.disconnect();
  }

  controls() {
    const button = (name, text, action) =>
      make("button", { type: "button", "aria-label": name, title: name, onclick: action }, text);
    return make(
      "div",
      { class: "ee-zoom", role: "group", "aria-label": "Zoom" },
      button("Zoom out", "−", () => this.zoom(-1)),
      button("Fit the whole tree", "Fit", () => this.fit()),
      button("Zoom in", "+", () => this.zoom(1)),
      document.fullscreenEnabled ? button("Full screen", "⛶", () => this.fill()) : null,
    );
  }

  fitting() {
    const { width, height } = this.size;
    return this.room.width ? Math.min(this.room.width / width, this.room.height / height) : 1;
  }

  // The scale in use: what was asked for, else what fits, within what can be read.
  resize(size = this.size, anew = false) {
    this.size = size;
    if (!this.size) return;
    const scale = this.scale ?? clamp(this.fitting(), LEGIBLE, 1.25);
    const { width, height } = this.size;
    change(this.svg, { viewBox: `0 0 ${width} ${height}` }); // set again, even to the same, it lays out every label
    Object.assign(this.svg.style, { width: `${width * scale}px`, height: `${height * scale}px` });
    this.used = scale;
    // To scroll, even to where it is, lays the page out at once, and then once more after the rest has been drawn.
    if (anew && this.scrolled) Object.assign(this.pane, { scrollLeft: 0, scrollTop: 0 });
  }

  zoom(direction) {
    const next =
      direction > 0
        ? ZOOMS.find((zoom) => zoom > this.used + 0.01)
        : ZOOMS.filter((zoom) => zoom < this.used - 0.01).pop();
    if (!next) return;
    const { pane } = this;
    const centre = [
      (pane.scrollLeft + pane.clientWidth / 2) / this.used,
      (pane.scrollTop + pane.clientHeight / 2) / this.used,
    ];
    this.scale = next;
    this.resize();
    Object.assign(pane, {
      scrollLeft: centre[0] * next - pane.clientWidth / 2,
      scrollTop: centre[1] * next - pane.clientHeight / 2,
    });
  }

  fit() {
    this.scale = Math.min(this.fitting(), 1.6);
    this.resize(this.size, true);
  }

  // The whole explorer on the whole screen, for a lecture hall; the same button goes back.
  fill() {
    if (document.fullscreenElement) document.exitFullscreen();
    else this.pane.closest(".ee").requestFullscreen();
  }

  wheel(event) {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    this.zoom(event.deltaY < 0 ? 1 : -1);
  }

  // With the mouse the pane is moved by dragging; a finger scrolls it anyway.
  drag(event) {
    if (event.pointerType !== "mouse" || event.button !== 0) return;
    const { pane } = this;
    const from = [event.clientX + pane.scrollLeft, event.clientY + pane.scrollTop];
    const move = (to) => Object.assign(pane, { scrollLeft: from[0] - to.clientX, scrollTop: from[1] - to.clientY });
    const stop = () => {
      window.removeEventListener("pointermove", move);
      pane.classList.remove("ee-dragging");
    };
    pane.classList.add("ee-dragging");
    window.addEventListener("pointermove", move);
    window.addEventListener("pointerup", stop, { once: true });
  }
}
