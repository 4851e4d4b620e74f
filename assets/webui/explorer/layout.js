// Levels are columns. Within a level the nodes stand in the order of the tree, so that no two edges cross, each as high up
// as its elder neighbours and its parent allow. So the head's favourite path is a straight line along the top, and the
// picture is hardly higher than its largest level.

const ROW = 31;
const BOX = 25;
const GAP = 40;
const MARGIN = 10;
const SIGN_WIDTH = 7.85; // of a typewriter face of 13 pixels
const BOX_EXTRA = 62; // sign in front, number behind, air
const BETWEEN_FAMILIES = 1.22; // rows from a node to the next one that has another parent

// `root`: {children, label}. Adds `row` and `column` to every node; gives the size of the picture in rows and pixels.
function arrange(root) {
  const widths = [];
  let rows = 1;
  Object.assign(root, { row: 0, column: 0 });
  for (let level = [root]; level.length; level = level.flatMap((item) => item.children)) {
    widths.push(Math.max(...level.map((item) => signs(item.label)), 3) * SIGN_WIDTH + BOX_EXTRA);
    let free = 0;
    for (const parent of level) {
      for (const child of parent.children) {
        child.column = widths.length;
        child.row = Math.max(free, parent.row);
        free = child.row + 1;
        rows = Math.max(rows, free);
      }
      if (parent.children.length) free += BETWEEN_FAMILIES - 1;
    }
  }
  const lefts = [];
  const right = widths.reduce((left, width, column) => {
    lefts[column] = left;
    return left + width + GAP;
  }, MARGIN);
  return { rows, widths, lefts, width: right - GAP + MARGIN, height: rows * ROW - (ROW - BOX) + 2 * MARGIN };
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
