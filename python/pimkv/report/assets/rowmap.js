// Draws regions x slots on a canvas: a bar is a run of blocks that the same sequences hold.
"use strict";

const COLUMN_GAP = 12, HEADER = 16;

// The look of a sequence: neighbouring numbers differ in hue, then in tone, then in having a dot.
function lookOf(sequence, { hues, tones }) {
  const tone = tones[Math.floor(sequence / hues.length) % tones.length];
  const dotted = Math.floor(sequence / (hues.length * tones.length)) % 2 === 1;
  const mixed = hues[sequence % hues.length].map((c) => Math.round(tone < 0 ? c * (1 + tone) : c + (255 - c) * tone));
  const light = 0.299 * mixed[0] + 0.587 * mixed[1] + 0.114 * mixed[2] > 140;
  return { fill: `rgb(${mixed.join(" ")})`, mark: dotted ? (light ? "#000" : "#fff") : null };
}

class RowMap {
  constructor(canvas, palette) {
    this.canvas = canvas;
    this.palette = palette;
    this.context = canvas.getContext("2d");
    this.tape = null;
    this.held = [];
    this.focus = -1; // the block under pointer or keyboard
  }

  show(tape, frame) {
    this.tape = tape;
    tape.seek(frame);
    this.held = tape.holders();
  }

  // Chooses the largest slots with which all regions stay within `most` pixels of height.
  layout(width, most) {
    const { perRegion, blocks } = this.tape;
    const regions = Math.ceil(blocks / perRegion);
    const fit = (slot) => {
      const high = Math.max(2, Math.min(slot, 12)), pitch = high + (high < 4 ? 1 : 2);
      const columns = Math.max(1, Math.floor((width + COLUMN_GAP) / (slot * perRegion + COLUMN_GAP)));
      const rows = Math.ceil(regions / columns);
      return { slot, high, pitch, columns: Math.ceil(regions / rows), rows, height: HEADER + rows * pitch };
    };
    const widest = Math.min(18, width / perRegion);
    let chosen = fit(widest);
    for (let slot = widest; chosen.height > most && slot >= 1; slot -= 0.5) chosen = fit(slot);
    Object.assign(this, chosen, { width, regions, separator: Math.min(1, chosen.slot / 4) });
  }

  // Top left corner and size of a block's slot, in CSS pixels of the canvas.
  cell(block) {
    const region = Math.floor(block / this.tape.perRegion);
    const column = Math.floor(region / this.rows);
    const x = column * (this.slot * this.tape.perRegion + COLUMN_GAP) + (block % this.tape.perRegion) * this.slot;
    return { x, y: HEADER + (region % this.rows) * this.pitch, w: this.slot, h: this.high };
  }

  // The block at a point, or -1.
  blockAt(x, y) {
    const { perRegion, blocks } = this.tape;
    const across = this.slot * perRegion + COLUMN_GAP;
    const column = Math.floor(x / across), row = Math.floor((y - HEADER) / this.pitch);
    const slot = Math.floor((x - column * across) / this.slot);
    if (x < 0 || row < 0 || row >= this.rows || slot >= perRegion) return -1;
    const block = (column * this.rows + row) * perRegion + slot;
    return block < blocks && column < this.columns ? block : -1;
  }

  // `chosen`: sequences to bring out, all others fade; none of them: everything in full colour.
  draw(chosen, colours) {
    const { canvas, context, tape, width, height } = this;
    const scale = window.devicePixelRatio || 1;
    canvas.style.height = `${height}px`;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    context.font = "11px system-ui, sans-serif";
    context.fillStyle = colours.muted;
    // Numbers that would touch each other are left out.
    const every = Math.ceil(40 / (this.slot * tape.perRegion + COLUMN_GAP));
    for (let column = 0; column < this.columns; column += every) {
      const { x } = this.cell(column * this.rows * tape.perRegion);
      context.fillText(String(column * this.rows), x, HEADER - 5);
    }
    for (let region = 0; region < this.regions; region++) this.drawRegion(region, chosen, colours);
    if (this.focus >= 0) {
      const { x, y, w, h } = this.cell(this.focus);
      context.strokeStyle = colours.text;
      context.lineWidth = 2;
      context.strokeRect(x - 1, y - 1, w + 1, h + 2);
    }
  }

  drawRegion(region, chosen, colours) {
    const { context, tape, held } = this;
    const first = region * tape.perRegion;
    const end = Math.min(first + tape.perRegion, tape.blocks);
    const { x, y, h } = this.cell(first);
    context.globalAlpha = 1;
    context.fillStyle = colours.free;
    context.fillRect(x, y, (end - first) * this.slot - this.separator, h);
    for (let block = first; block < end; ) {
      const key = keyOf(held[block]);
      let last = block + 1;
      while (last < end && key && keyOf(held[last]) === key) last++;
      if (key) this.drawRun(block, last, chosen, colours);
      block = last;
    }
    context.globalAlpha = 1;
  }

  drawRun(block, end, chosen, colours) {
    const { context, tape, held } = this;
    const { x, y, h } = this.cell(block);
    const wide = (end - block) * this.slot - this.separator;
    const holders = held[block];
    const out = chosen.size > 0 && !holders.some(({ sequence }) => chosen.has(sequence));
    const look = lookOf(holders[0].sequence, this.palette);
    const shared = holders.length > 1;
    context.fillStyle = shared ? colours.shared : look.fill;
    // The empty part of a block that is not full is pale.
    const full = end - 1 - block + held[end - 1][0].tokens / tape.blockTokens;
    const filled = Math.min(wide, full * this.slot);
    const strength = out ? 0.13 : 1;
    context.globalAlpha = strength * 0.35;
    context.fillRect(x, y, wide, h);
    context.globalAlpha = strength;
    context.fillRect(x, y, filled, h);
    if (shared || !look.mark || this.slot < 4) return;
    context.fillStyle = look.mark;
    context.globalAlpha = strength * 0.8;
    context.fillRect(x + this.slot / 2 - 1.5, y + h / 2 - 1, 2, 2);
  }
}

function keyOf(holders) {
  return holders ? holders.map(({ sequence }) => sequence).join() : "";
}
