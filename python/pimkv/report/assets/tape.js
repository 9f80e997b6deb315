// A recorded placement played forth and back: docs/formats.md describes its records.
"use strict";

const STEP = 0, LEAVE = 1, TOKENS = 2, BLOCK = 3;
const HIGH = 2 ** 32;
const CHECKPOINT = 64; // frames between two kept states

class Tape {
  constructor(recording) {
    Object.assign(this, recording);
    const bytes = Uint8Array.from(atob(recording.records), (c) => c.charCodeAt(0));
    const view = new DataView(bytes.buffer);
    this.words = Uint32Array.from({ length: bytes.length / 4 }, (_, i) => view.getUint32(4 * i, true));
    this.starts = [];
    for (let i = 0; i < this.words.length; i += 4) if (this.words[i] === STEP) this.starts.push(i);
    this.kept = new Map();
    this.frame = -1;
    this.tables = new Map(); // sequence -> { tokens, blocks }
  }

  // The last recorded step that is not after `step`; -1 if there is none.
  frameAt(step) {
    let low = 0, high = this.steps.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.steps[middle] <= step) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  }

  seek(frame) {
    if (frame === this.frame) return;
    const near = Math.floor(frame / CHECKPOINT) * CHECKPOINT;
    if (frame < this.frame || (near > this.frame && this.kept.has(near))) {
      this.frame = frame < 0 || !this.kept.has(near) ? -1 : near;
      this.tables = this.frame < 0 ? new Map() : copied(this.kept.get(near));
    }
    while (this.frame < frame) this.next();
  }

  next() {
    const { words, starts, tables } = this;
    const frame = ++this.frame;
    if (frame > 0) {
      const passed = this.steps[frame] - this.steps[frame - 1];
      for (const table of tables.values()) table.tokens += passed;
    }
    const end = frame + 1 < starts.length ? starts[frame + 1] : words.length;
    for (let i = starts[frame] + 4; i < end; i += 4) {
      const sequence = words[i + 1], index = words[i + 2], value = words[i + 3];
      if (words[i] === LEAVE) tables.delete(sequence);
      else if (words[i] === BLOCK) tables.get(sequence).blocks[index] = value;
      else if (words[i] === TOKENS) {
        if (!tables.has(sequence)) tables.set(sequence, { blocks: [] });
        tables.get(sequence).tokens = index + HIGH * value;
      }
    }
    for (const table of tables.values()) table.blocks.length = Math.ceil(table.tokens / this.blockTokens);
    if (frame % CHECKPOINT === 0 && !this.kept.has(frame)) this.kept.set(frame, copied(tables));
  }

  // Per block the sequences that hold it, ascending: [{ sequence, index, tokens }], or undefined.
  holders() {
    const held = new Array(this.blocks);
    for (const sequence of [...this.tables.keys()].sort((a, b) => a - b)) {
      const { tokens, blocks } = this.tables.get(sequence);
      blocks.forEach((block, index) => {
        const inside = Math.min(this.blockTokens, tokens - index * this.blockTokens);
        (held[block] ||= []).push({ sequence, index, tokens: inside });
      });
    }
    return held;
  }

  // Blocks of a sequence, the regions they lie in, and the fewest they could lie in.
  spread(sequence) {
    const table = this.tables.get(sequence);
    if (!table) return null;
    const regions = new Set(table.blocks.map((block) => Math.floor(block / this.perRegion)));
    const fewest = Math.ceil(table.blocks.length / this.perRegion);
    return { tokens: table.tokens, blocks: table.blocks.length, regions: regions.size, fewest };
  }
}

function copied(tables) {
  return new Map([...tables].map(([s, t]) => [s, { tokens: t.tokens, blocks: t.blocks.slice() }]));
}
