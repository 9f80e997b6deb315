// The controls of the page: steps, the two maps, pointer and keyboard, what is under them.
"use strict";

const $ = (id) => document.getElementById(id);
const number = (n) => n.toLocaleString("en-US");
const plural = (n, word) => `${number(n)} ${word}${n === 1 ? "" : "s"}`;

class Viewer {
  constructor({ recordings, palette }) {
    this.tapes = recordings.map((recording) => new Tape(recording));
    this.sides = ["left", "right"].map((name) => {
      const select = $(`pick-${name}`);
      this.tapes.forEach((tape, n) => select.add(new Option(tape.name, n)));
      const map = new RowMap($(`map-${name}`), palette);
      return { name, map, select, chosen: 0, numbers: $(`numbers-${name}`), of: $(`of-${name}`) };
    });
    this.side = this.sides[0]; // where the pointer or the keyboard was last
    this.pinned = new Set();
    this.hovered = new Set();
    this.steps = [];
    this.at = 0;
    this.timer = 0;
  }

  start(left, right) {
    [left, right].forEach((chosen, i) => {
      const side = this.sides[i];
      side.chosen = chosen;
      side.select.value = chosen;
      side.select.addEventListener("change", () => {
        side.chosen = Number(side.select.value);
        side.map.focus = -1; // the other run may not have this block
        this.gather();
      });
      this.listen(side);
    });
    $("slider").addEventListener("input", () => this.go(Number($("slider").value)));
    $("back").addEventListener("click", () => this.go(this.at - 1));
    $("forth").addEventListener("click", () => this.go(this.at + 1));
    $("play").addEventListener("click", () => (this.timer ? this.stop() : this.play()));
    $("chart").addEventListener("click", (event) => this.go(this.chartIndex(event.offsetX)));
    // In the next frame: drawing may change the height of what is observed.
    new ResizeObserver(() => requestAnimationFrame(() => this.draw())).observe($("maps"));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    this.gather();
    this.go(this.costliest());
  }

  // The slider runs over the steps that either of the two runs has recorded.
  gather() {
    const now = this.steps[this.at];
    const all = this.sides.flatMap((side) => this.tapes[side.chosen].steps);
    this.steps = [...new Set(all)].sort((a, b) => a - b);
    $("slider").max = this.steps.length - 1;
    this.go(this.steps.findLastIndex((step) => step <= now));
  }

  // Where the left run opens most regions: the pool is in full use there, as it hardly is at either end.
  costliest() {
    const tape = this.tapes[this.sides[0].chosen];
    const most = tape.pairs.reduce((best, pairs, frame) => (pairs > tape.pairs[best] ? frame : best), 0);
    return this.steps.indexOf(tape.steps[most]);
  }

  go(index) {
    this.at = Math.min(this.steps.length - 1, Math.max(0, index));
    const step = this.steps[this.at];
    $("slider").value = this.at;
    $("slider").setAttribute("aria-valuetext", `step ${step}`);
    $("step").textContent = `step ${number(step)}`;
    for (const side of this.sides) {
      const tape = this.tapes[side.chosen];
      side.frame = tape.frameAt(step);
      side.map.show(tape, side.frame);
      side.numbers.textContent = numbersOf(tape, side.frame, step);
    }
    this.tell();
  }

  play() {
    if (this.at === this.steps.length - 1) this.go(0);
    // A run takes about half a minute, whatever its length.
    const stride = Math.max(1, Math.round(this.steps.length / 600));
    this.timer = setInterval(() => {
      this.go(this.at + stride);
      if (this.at === this.steps.length - 1) this.stop();
    }, 50);
    $("play").textContent = "Pause";
  }

  stop() {
    clearInterval(this.timer);
    this.timer = 0;
    $("play").textContent = "Play";
  }

  draw() {
    const style = getComputedStyle(document.documentElement);
    const colours = Object.fromEntries(
      ["text", "muted", "free", "shared", "line", "left", "right", "ink"].map((n) => [n, style.getPropertyValue(`--${n}`)]),
    );
    const chosen = this.hovered.size ? this.hovered : this.pinned;
    for (const { map } of this.sides) {
      map.layout(map.canvas.clientWidth, Math.max(320, Math.min(620, 0.7 * window.innerHeight)));
      map.draw(chosen, colours);
    }
    this.drawChart(colours);
  }

  // ---- what is under the pointer or the keyboard ----

  listen(side) {
    const { map, name } = side;
    const { canvas } = map;
    canvas.addEventListener("pointermove", (event) => this.point(side, map.blockAt(event.offsetX, event.offsetY)));
    canvas.addEventListener("pointerdown", (event) => this.point(side, map.blockAt(event.offsetX, event.offsetY)));
    canvas.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && this.point(side, -1));
    canvas.addEventListener("click", () => this.pin(side));
    canvas.addEventListener("blur", () => this.point(side, -1));
    canvas.addEventListener("keydown", (event) => {
      const stride = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -map.tape.perRegion, ArrowDown: map.tape.perRegion }[event.key];
      if (stride !== undefined) {
        const next = map.focus < 0 ? 0 : map.focus + stride;
        if (next >= 0 && next < map.tape.blocks) this.point(side, next);
      } else if (event.key === "Enter" || event.key === " ") this.pin(side);
      else if (event.key === "Escape") {
        this.pinned.clear();
        side.map.focus = -1;
        this.tell();
      } else return;
      event.preventDefault();
    });
    canvas.dataset.side = name;
  }

  point(side, block) {
    if (block === side.map.focus && side === this.side) return;
    for (const { map } of this.sides) map.focus = -1;
    side.map.focus = block;
    this.side = side;
    this.tell();
  }

  pin(side) {
    const holders = (side.map.held[side.map.focus] ?? []).map(({ sequence }) => sequence);
    const same = holders.length === this.pinned.size && holders.every((sequence) => this.pinned.has(sequence));
    this.pinned = new Set(same ? [] : holders);
    this.tell();
  }

  tell() {
    const { map } = this.side;
    const block = map.focus;
    const holders = (block >= 0 && map.held[block]) || [];
    this.hovered = new Set(holders.map(({ sequence }) => sequence));
    const chosen = this.hovered.size ? this.hovered : this.pinned;
    for (const side of this.sides) side.of.textContent = saySequences(side.map.tape, chosen) || "\u00a0";
    // Drawn before the tip is placed: drawing may change the height of the maps.
    this.draw();
    const tip = $("tip");
    tip.hidden = block < 0;
    tip.textContent = block < 0 ? "" : sayBlock(map.tape, block, holders);
    $("said").textContent = block < 0 ? "" : `${map.tape.name}: ${tip.textContent}`;
    if (block >= 0) place(tip, map, block);
  }

  // ---- regions opened, step by step ----

  chartIndex(x) {
    return Math.round(((x - 44) / ($("chart").clientWidth - 52)) * (this.steps.length - 1));
  }

  drawChart(colours) {
    const canvas = $("chart"), context = canvas.getContext("2d");
    const width = canvas.clientWidth, height = canvas.clientHeight, scale = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    context.setTransform(scale, 0, 0, scale, 0, 0);
    const [left, right, top, bottom] = [44, width - 8, 8, height - 20];
    const tapes = this.sides.map((side) => this.tapes[side.chosen]);
    const most = Math.max(1, ...tapes.map((tape) => tape.pairs.reduce((a, b) => Math.max(a, b), 0)));
    const first = this.steps[0], last = Math.max(first + 1, this.steps[this.steps.length - 1]);
    // The axis counts recorded steps, as the slider does.
    const x = (index) => left + ((right - left) * index) / Math.max(1, this.steps.length - 1);
    const y = (value) => bottom - ((bottom - top) * value) / most;
    context.font = "11px system-ui, sans-serif";
    context.fillStyle = colours.muted;
    context.textAlign = "right";
    for (const value of [0, most]) context.fillText(number(value), left - 6, y(value) + 4);
    context.textAlign = "left";
    context.fillText(number(first), left, height - 4);
    context.textAlign = "right";
    context.fillText(`step ${number(last)}`, right, height - 4);
    context.strokeStyle = colours.line;
    context.lineWidth = 1;
    context.strokeRect(left, top, right - left, bottom - top);
    const line = (tape, values, colour, dash) => {
      context.beginPath();
      context.setLineDash(dash);
      context.strokeStyle = colour;
      context.lineWidth = 1.5;
      // No more points than pixels.
      const every = Math.max(1, this.steps.length / (2 * (right - left)));
      for (let i = 0; i < this.steps.length; i += every) {
        const index = Math.floor(i), frame = tape.frameAt(this.steps[index]);
        context.lineTo(x(index), y(frame < 0 ? 0 : values[frame]));
      }
      context.stroke();
      context.setLineDash([]);
    };
    line(tapes[1], tapes[1].fewest, colours.ink, [2, 3]);
    line(tapes[0], tapes[0].pairs, colours.left, []);
    if (tapes[1] !== tapes[0]) line(tapes[1], tapes[1].pairs, colours.right, [6, 2]);
    context.fillStyle = colours.text;
    context.fillRect(x(this.at) - 0.5, top, 1, bottom - top);
    tapes.forEach((tape, i) => ($(`key-${this.sides[i].name}`).textContent = tape.name));
  }
}

function numbersOf(tape, frame, step) {
  if (frame < 0) return "nothing has run yet";
  const stale = tape.steps[frame] === step ? "" : ` \u00b7 as of step ${number(tape.steps[frame])}`;
  const held = `${plural(tape.running[frame], "sequence")} in ${plural(tape.held[frame], "block")}`;
  return `${held} \u00b7 ${number(tape.pairs[frame])} regions opened, fewest ${number(tape.fewest[frame])}${stale}`;
}

function sayBlock(tape, block, holders) {
  const region = Math.floor(block / tape.perRegion);
  const where = `block ${block} \u00b7 region ${region}, slot ${block % tape.perRegion}`;
  if (!holders.length) return `no running sequence\n${where}`;
  const lines = holders.slice(0, 12).map(
    ({ sequence, index, tokens }) => `sequence ${sequence} \u00b7 logical block ${index} \u00b7 ${tokens} of ${tape.blockTokens} tokens`,
  );
  if (holders.length > 12) lines.push(`and ${holders.length - 12} sequences more`);
  if (holders.length > 1) lines.unshift(`shared by ${holders.length} sequences`);
  return [...lines, where].join("\n");
}

function saySequences(tape, chosen) {
  if (chosen.size > 1) return `${chosen.size} sequences share this block`;
  for (const sequence of chosen) {
    const s = tape.spread(sequence);
    if (!s) return `sequence ${sequence} is not running here`;
    const lie = `${plural(s.blocks, "block")} in ${plural(s.regions, "region")}`;
    return `sequence ${sequence}: ${plural(s.tokens, "token")}, ${lie}, fewest ${s.fewest}`;
  }
  return "";
}

// Beside the block, inside the window.
function place(tip, map, block) {
  const { x, y, w, h } = map.cell(block);
  const frame = map.canvas.getBoundingClientRect();
  const left = Math.min(frame.left + x + w + 8, document.documentElement.clientWidth - tip.offsetWidth - 8);
  const below = frame.top + y + h + 8;
  const above = frame.top + y - tip.offsetHeight - 8;
  tip.style.left = `${Math.max(8, left)}px`;
  tip.style.top = `${below + tip.offsetHeight > window.innerHeight ? above : below}px`;
}

// For tests and the console: everything that went wrong on this page.
const faults = [];
window.addEventListener("error", (event) => faults.push(event.message));
document.addEventListener("securitypolicyviolation", (event) => faults.push(`policy: ${event.violatedDirective}`));

const shown = JSON.parse($("placements").textContent);
window.pimkv = { faults, viewer: null };
if (shown.recordings.length) {
  const viewer = new Viewer(shown);
  window.pimkv.viewer = viewer;
  viewer.start(shown.left, shown.right);
}
