// Tokens as people can read them: blanks and line ends have signs, control characters have pictures.

const LONGEST_LABEL = 14;
const SIGNS = { "\n": "⏎", "\r": "␍", "\t": "⇥", "\u00a0": "⍽", "\u200b": "∅" };
// Signs that turn the direction of the text around them would garble a label.
const CONTROL = /[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;
const WIDE =
  /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe4f\uff00-\uff60\u{1f000}-\u{1faff}\u{20000}-\u{3fffd}]/u;

function controlPicture(sign) {
  if (SIGNS[sign]) return SIGNS[sign];
  const code = sign.codePointAt(0);
  return code < 32 ? String.fromCharCode(0x2400 + code) : "�";
}

// In a label every blank shows; four or more in a row are counted.
function visible(text) {
  if (text === "") return "∅";
  const shown = text.replace(/[\u00a0\u200b]/g, (sign) => SIGNS[sign]).replace(CONTROL, controlPicture);
  return shown.replace(/ {4,}/g, (blanks) => `␣×${blanks.length} `.trimEnd()).replace(/ /g, "␣");
}

// In running text blanks and line ends do what they do.
function readable(text) {
  return text.replace(CONTROL, (sign) => (sign === "\n" || sign === "\t" ? sign : controlPicture(sign)));
}

const segmenter = typeof Intl !== "undefined" && Intl.Segmenter ? new Intl.Segmenter() : null;

function characters(text) {
  return segmenter ? Array.from(segmenter.segment(text), (part) => part.segment) : Array.from(text);
}

// Width in signs of a typewriter face.
function signs(text) {
  return sum(Array.from(text, (sign) => (WIDE.test(sign) ? 2 : 1)));
}

// The same few tokens come back in every cycle, so their labels are kept.
const labels = new Map();
const MOST_LABELS = 4000;

function label(text, longest = LONGEST_LABEL) {
  if (longest !== LONGEST_LABEL) return shortened(text, longest);
  let known = labels.get(text);
  if (known === undefined) {
    if (labels.size > MOST_LABELS) labels.clear();
    known = shortened(text, longest);
    labels.set(text, known);
  }
  return known;
}

function shortened(text, longest) {
  const shown = visible(text.slice(0, 200));
  if (signs(shown) <= longest) return shown;
  let kept = "";
  for (const sign of characters(shown)) {
    if (signs(kept + sign) > longest - 1) break;
    kept += sign;
  }
  return `${kept}…`;
}

// The sign for a blank steps back: most tokens begin with one.
function parted(shown) {
  const [blanks] = /^␣*/.exec(shown);
  return { blanks, word: shown.slice(blanks.length) };
}

// A token within a sentence.
function tokenChip(text) {
  const { blanks, word } = parted(label(text, 24));
  return make("span", { class: "ee-token" }, blanks && make("span", { class: "ee-blank" }, blanks), word);
}

// A token for those who hear it.
function spoken(text) {
  const words = { "\n": "line end", " ": "blank", "\t": "tab" };
  return words[text] ?? `“${readable(text).trim().slice(0, 60) || label(text)}”`;
}
