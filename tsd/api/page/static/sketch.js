// The first drawing of a graph, on a canvas: it is shown until the plotting library, which takes longer to start, draws.

import { tickStep } from "./state.js";

export const MARGIN = { l: 56, r: 20, t: 16, b: 48 }; // enough for most labels: the library makes room for longer ones
const MOST_DRAWN = 1e300; // the span of larger values may be infinite, and an axis then has no place for any value
const PIXELS_A_TICK = { x: 120, y: 60 };
const DASHES = { solid: [], dash: [9, 9], dot: [3, 3] };
const MARKER = 2; // radius
const TITLE_GAP = 10; // between labels and title
export const DAY_MS = 86_400_000;
const PREFIXES = { "-9": "n", "-6": "µ", "-3": "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P" };

/** Return about `most` numbers between two, in steps of 1, 2 or 5 times a power of ten; none between equal numbers. */
function numberTicks(ends, most) {
  const [low, high] = [Math.min(...ends), Math.max(...ends)]; // a range such as [10:0] runs downwards
  if (!(high > low)) return [];
  const power = 10 ** Math.floor(Math.log10((high - low) / most));
  const step = power * [1, 2, 5, 10].find((factor) => power * factor * most >= high - low);
  const first = Math.ceil(low / step);
  const found = Array.from({ length: Math.ceil(most) + 1 }, (_, at) => (first + at) * step || 0); // no -0
  return found.filter((tick) => tick <= high);
}

/** Return the numbers to label on a logarithmic axis. Its ends are powers of ten. */
function logTicks([low, high], most) {
  if (high - low < 1) return numberTicks([10 ** low, 10 ** high], most);
  if (high - low >= 3) return numberTicks([low, high], most).filter(Number.isInteger).map((power) => 10 ** power);
  const powers = [0, 1, 2, 3].map((at) => 10 ** (Math.floor(low) + at));
  return powers.flatMap((power) => [power, 2 * power, 5 * power]).filter((tick) => tick >= 10 ** low && tick <= 10 ** high);
}

/** Return the labels of an axis: [place, text]. */
function labels(values, isLog, most) {
  if (isLog) return logTicks(values, most).map((tick) => [Math.log10(tick), numberText(tick)]);
  return numberTicks(values, most).map((tick) => [tick, numberText(tick)]);
}

/** Return a number with a prefix of the SI such as k or M. */
function numberText(number) {
  const exponent = number ? 3 * Math.floor((Math.log10(Math.abs(number)) + 1e-9) / 3) : 0;
  const prefix = PREFIXES[exponent];
  return prefix === undefined ? number.toPrecision(4) : `${Number((number / 10 ** exponent).toPrecision(6))}${prefix}`;
}

/** Return how many labels an axis of times has at most. */
export function mostTicks() {
  return Math.max(2, Math.floor(window.innerWidth / PIXELS_A_TICK.x));
}

/** Return times in ms at round clock times of the user's zone, the lines of text below each, and their distance. */
export function ticksOfTime([from, to]) {
  const step = tickStep(to - from, mostTicks());
  const shift = new Date(from).getTimezoneOffset() * 60_000;
  const times = [];
  for (let at = Math.ceil((from - shift) / step) * step + shift; at <= to; at += step) times.push(at);
  const date = new Intl.DateTimeFormat("en", { dateStyle: "medium" });
  const days = times.map((time) => date.format(time));
  const texts = times.map((time, at) => [timeText(time, step), ...(step < DAY_MS && days[at] !== days[at - 1] ? [days[at]] : [])]);
  return { times, texts, step };
}

function timeText(ms, step) {
  const date = { month: "short", day: "numeric" };
  const time = { hour: "2-digit", minute: "2-digit", hourCycle: "h23", ...(step < 60_000 ? { second: "2-digit" } : {}) };
  return new Intl.DateTimeFormat("en", step >= DAY_MS ? date : time).format(ms);
}

/** Return whether a value has a place on an axis. */
export function isDrawable(value) {
  return typeof value === "number" && Math.abs(value) <= MOST_DRAWN;
}

/** Return the least and the most value of curves, for a logarithmic axis of those above 0; null without values. */
export function extremes(curves, isLog = false) {
  let [least, most] = [Infinity, -Infinity];
  for (const curve of curves) {
    for (const [, value] of curve.points) {
      if (!isDrawable(value) || (isLog && value <= 0)) continue;
      least = Math.min(least, value);
      most = Math.max(most, value);
    }
  }
  return least <= most ? [least, most] : null;
}

/** Return the range of values of an axis with a margin, in powers of ten if it is logarithmic; null without values. */
function valueRange(curves, { type, range }) {
  if (range && range[0] !== range[1]) return range;
  const isLog = type === "log";
  const ends = range ?? extremes(curves, isLog);
  if (ends === null) return null;
  const [least, most] = isLog ? ends.map(Math.log10) : ends;
  const room = (most - least) / 18 || Math.abs(most) / 10 || 1;
  return [least - room, most + room];
}

/**
 * Draw curves, each {axis, points, look: {color, dash}, marked}, in a box. `range` is in ms, `marks` are times in ms.
 * `axes` has {type, range, title} of the left and the right axis; `colors` has `text`, `line`, `mark` and `back`.
 */
export function sketch(box, curves, { range, marks, axes, colors, height, label }) {
  const canvas = document.createElement("canvas");
  const width = Math.max(200, Math.round(box.clientWidth));
  const dense = window.devicePixelRatio || 1;
  Object.assign(canvas, { width: width * dense, height: height * dense });
  Object.assign(canvas.style, { width: `${width}px`, height: `${height}px`, display: "block" });
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", label);
  const pen = canvas.getContext("2d");
  pen.scale(dense, dense);
  pen.font = "12px sans-serif";
  const hasRight = curves.some((curve) => curve.axis === "right");
  const [left, right] = [MARGIN.l, width - (hasRight ? MARGIN.l : MARGIN.r)];
  const [top, bottom] = [MARGIN.t, height - MARGIN.b];
  const x = (ms) => left + ((ms - range[0]) / (range[1] - range[0])) * (right - left);
  const line = (from, to, color) => {
    pen.strokeStyle = color;
    pen.beginPath();
    pen.moveTo(...from);
    pen.lineTo(...to);
    pen.stroke();
  };
  pen.fillStyle = colors.back;
  pen.fillRect(0, 0, width, height);

  pen.fillStyle = colors.text;
  pen.textAlign = "center";
  const { times, texts } = ticksOfTime(range);
  times.forEach((time, at) => {
    line([x(time), top], [x(time), bottom], colors.line);
    texts[at].forEach((text, row) => pen.fillText(text, x(time), bottom + 16 * (row + 1)));
  });

  for (const side of hasRight ? ["left", "right"] : ["left"]) {
    const { type, title } = axes[side];
    const isLog = type === "log";
    const mine = curves.filter((curve) => curve.axis === side);
    const values = valueRange(mine, axes[side]);
    if (values === null) continue;
    const y = (value) => bottom - ((value - values[0]) / (values[1] - values[0])) * (bottom - top);
    const [edge, out] = side === "left" ? [left, -1] : [right, 1];
    pen.fillStyle = colors.text;
    pen.textAlign = side === "left" ? "right" : "left";
    let widest = 0;
    for (const [tick, text] of labels(values, isLog, (bottom - top) / PIXELS_A_TICK.y)) {
      if (side === "left") line([left, y(tick)], [right, y(tick)], colors.line);
      pen.fillText(text, edge + 4 * out, y(tick) + 4);
      widest = Math.max(widest, pen.measureText(text).width);
    }
    pen.save();
    const aside = edge + (4 + widest + TITLE_GAP) * out;
    pen.translate(side === "left" ? Math.max(14, aside) : Math.min(width - 4, aside + 10), (top + bottom) / 2);
    pen.rotate(-Math.PI / 2);
    pen.textAlign = "center";
    pen.font = "14px sans-serif";
    pen.fillText(title, 0, 0);
    pen.restore();

    pen.save();
    pen.beginPath();
    pen.rect(left, top, right - left, bottom - top);
    pen.clip();
    pen.lineWidth = 1.4;
    pen.lineJoin = "round";
    for (const { points, look, marked } of mine) {
      pen.strokeStyle = pen.fillStyle = look.color;
      pen.setLineDash(DASHES[look.dash]);
      pen.beginPath();
      let isOpen = false; // no line goes to a value that is missing
      for (const [ms, value] of points) {
        const isDrawn = isDrawable(value) && !(isLog && value <= 0);
        const place = isDrawn ? [x(ms), y(isLog ? Math.log10(value) : value)] : null;
        if (isDrawn && isOpen) pen.lineTo(...place);
        else if (isDrawn) pen.moveTo(...place);
        if (isDrawn && marked) pen.fillRect(place[0] - MARKER, place[1] - MARKER, 2 * MARKER, 2 * MARKER);
        isOpen = isDrawn;
      }
      pen.stroke();
    }
    pen.restore();
  }
  pen.setLineDash(DASHES.dot);
  for (const time of marks) line([x(time), top], [x(time), bottom], colors.mark);
  box.replaceChildren(canvas);
}
