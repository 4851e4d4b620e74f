// A tidy tree from left to right: levels are columns, a parent stands in the row of its first child, and subtrees move
// up into free room. So the head's favourite path is a straight line, and no two edges cross.

const ROW = 31;
const BOX = 25;
const GAP = 40;
const MARGIN = 10;
const SIGN_WIDTH = 7.85; // of a typewriter face of 13 pixels
const BOX_EXTRA = 58; // sign in front, number behind, air

// `root`: {children, label}. Adds `row` and `column` to every node; the size of the picture in rows and pixels.
function arrange(root) {
  settle(root, 0);
  const widths = [];
  let rows = 0;
  const place = (node, row) => {
    node.row = row;
    rows = Math.max(rows, row + 1);
    const width = Math.max(signs(node.label), 3) * SIGN_WIDTH + BOX_EXTRA;
    widths[node.column] = Math.max(widths[node.column] ?? 0, width);
    for (const child of node.children) place(child, row + child.offset);
  };
  place(root, 0);
  const lefts = [];
  widths.reduce((left, width, column) => {
    lefts[column] = left;
    return left + width + GAP;
  }, MARGIN);
  const last = widths.length - 1;
  return { rows, widths, lefts, width: lefts[last] + widths[last] + MARGIN, height: rows * ROW - (ROW - BOX) + 2 * MARGIN };
}

// `offset` of every child (rows below its parent); the outline of the subtree by levels, seen from its own row.
function settle(node, column) {
  node.column = column;
  const outline = { top: [0], bottom: [0] };
  for (const child of node.children) {
    const own = settle(child, column + 1);
    let offset = 0;
    own.top.forEach((row, level) => {
      const above = outline.bottom[level + 1];
      if (above !== undefined) offset = Math.max(offset, above + 1 - row);
    });
    child.offset = offset;
    own.top.forEach((row, level) => {
      outline.top[level + 1] = Math.min(outline.top[level + 1] ?? Infinity, row + offset);
      outline.bottom[level + 1] = Math.max(outline.bottom[level + 1] ?? -Infinity, own.bottom[level] + offset);
    });
  }
  return outline;
}

const boxTop = (row) => MARGIN + row * ROW;

// From the right side of the parent's box to the left side of the child's.
function edgePath(size, parent, child) {
  const x1 = size.lefts[parent.column] + size.widths[parent.column];
  const x2 = size.lefts[child.column];
  const y1 = boxTop(parent.row) + BOX / 2;
  const y2 = boxTop(child.row) + BOX / 2;
  const bend = (x2 - x1) * 0.55;
  return `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`;
}
