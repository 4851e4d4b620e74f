// τ by the number of nodes, and what it has to beat. `taus`, `bars`: for 1, 2, ... nodes; `bars` is empty where a plain
// step is not known. `asked`: the number of nodes that is marked.
function payCurve(taus, bars, asked) {
  const most = taus.length;
  const sizes = taus.map((_, place) => place + 1);
  const [width, height, left, bottom] = [440, 210, 32, 34];
  const top = Math.min(Math.max(...taus, ...bars, 2), Math.max(...taus) * 2.5) * 1.08;
  const x = (nodes) => left + ((nodes - 1) / Math.max(most - 1, 1)) * (width - left - 12);
  const y = (value) => height - bottom - (value / top) * (height - bottom - 10);
  const ends = [taus[0], taus[most - 1]].map(hundredths);
  const svg = frame(width, height, `τ by the number of nodes, from ${ends[0]} to ${ends[1]}`);
  for (let value = 0; value <= top; value += Math.max(1, Math.round(top / 5)))
    svg.append(
      draw("line", { class: "ee-grid", x1: left, x2: width - 12, y1: y(value), y2: y(value) }),
      axisText(left - 6, y(value) + 4, value, "end"),
    );
  const line = (values, name) => {
    const above = values.findIndex((value) => value > top); // there a line leaves the picture
    const inside = above < 0 ? values : values.slice(0, above);
    return draw("path", {
      class: name,
      d: inside
        .map((value, place) => `${place ? "L" : "M"}${x(sizes[place]).toFixed(1)} ${y(value).toFixed(1)}`)
        .join(""),
    });
  };
  svg.append(line(taus, "ee-line-tau"), bars.length ? line(bars, "ee-line-cost") : "");
  svg.append(
    draw("line", { class: "ee-mean", x1: x(asked), x2: x(asked), y1: 14, y2: height - bottom }),
    axisText(clamp(x(asked), left + 20, width - 36), 10, `N = ${asked}`),
    axisText(left, height - 18, "1", "start"),
    axisText(width - 12, height - 18, String(most), "end"),
  );
  svg.append(
    draw("text", { class: "ee-axis ee-ink-draft", x: left, y: height - 3 }, "━ τ by N"),
    bars.length
      ? draw("text", { class: "ee-axis ee-ink-bonus", x: left + 80, y: height - 3 }, "┅ break-even 1 + c")
      : "",
  );
  return svg;
}
