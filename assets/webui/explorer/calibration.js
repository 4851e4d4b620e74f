// Draft confidence against acceptance: the reason why a dynamic tree can spend its nodes well.

const BINS = 10;

// A node is judged where its parent was accepted. If q is honest, a share q of those with confidence q is accepted.
function calibrationBins(run) {
  const bins = Array.from({ length: BINS }, () => ({ count: 0, accepted: 0, confidence: 0 }));
  for (const cycle of run.decoding) {
    if (!cycle.traced) continue;
    const fresh = cycle.known === null;
    for (const node of cycle.tree.kept.slice(1)) {
      if (node.status === "unreached" || node.q === null) continue;
      const bin = bins[Math.min(Math.floor(node.q * BINS), BINS - 1)];
      bin.count += 1;
      bin.accepted += Number(node.status === "accepted");
      bin.confidence += node.q;
    }
    if (fresh) cycle.forget();
  }
  return bins;
}

function calibrationChart(run) {
  const bins = calibrationBins(run);
  const total = sum(bins.map((bin) => bin.count));
  if (!total) return null;
  const [width, height, left, bottom] = [440, 250, 44, 36];
  const svg = frame(width, height, "Confidence of the draft head against acceptance");
  const x = (share) => left + share * (width - left - 22);
  const y = (share) => height - bottom - share * (height - bottom - 14);
  for (const share of [0, 0.25, 0.5, 0.75, 1]) {
    svg.append(
      draw("line", { class: "ee-grid", x1: x(0), x2: x(1), y1: y(share), y2: y(share) }),
      axisText(left - 6, y(share) + 4, share === 0.25 || share === 0.75 ? "" : percent(share), "end"),
      axisText(x(share), height - bottom + 15, percent(share)),
    );
  }
  svg.append(
    draw("line", { class: "ee-diagonal", x1: x(0), y1: y(0), x2: x(1), y2: y(1) }),
    axisText((x(0) + x(1)) / 2, height - 5, "the head’s confidence q"),
    axisText(x(0) + 6, y(1) + 12, "accepted", "start"),
  );
  const most = Math.max(...bins.map((bin) => bin.count));
  for (const bin of bins.filter((one) => one.count)) {
    const dot = {
      cx: x(bin.confidence / bin.count),
      cy: y(bin.accepted / bin.count),
      r: 3 + 9 * Math.sqrt(bin.count / most),
    };
    svg.append(
      draw("circle", { class: "ee-dot", ...dot }, draw("title", {}, `${bin.accepted} of ${bin.count} accepted`)),
    );
  }
  const sentence = `${counted(total, "drafted token")} the target judged, in tenths of q; larger dots hold more. On the line, confidence is honest, which is what lets a dynamic tree spend its nodes well.`;
  const rows = bins.map((bin, place) => [`${place / 10} to ${(place + 1) / 10}`, bin.count, bin.accepted]);
  return chart("Calibration.", sentence, svg, ["q", "judged", "accepted"], rows);
}
