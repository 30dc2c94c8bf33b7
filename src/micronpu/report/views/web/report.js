// The report page: the network as a graph, cycles over time, and tables that can be sorted.
// What stands in the page without this script is complete by itself; nothing is fetched from anywhere.
"use strict";
(() => {
  const report = JSON.parse(document.getElementById("report").textContent);
  const errors = JSON.parse(document.getElementById("errors").textContent);
  const element = (tag, attributes = {}, ...children) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children.filter((child) => child !== null && child !== ""));
    return made;
  };
  const count = (n) => n.toLocaleString("en");
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const file = (source) => source.split(/[/\\]/).pop();
  const shape = (sizes) => sizes.join("×") || "–";

  // ---- what is known of each operator of the model ------------------------------------------------------------------

  // An operation of the NPU stands for all operators that were fused into it; its cycles are shown at the first of them.
  const operationsOf = new Map();
  for (const operation of report.operations) {
    operation.nodes.forEach((node, position) => {
      if (!operationsOf.has(node)) operationsOf.set(node, []);
      operationsOf.get(node).push({ operation, first: position === 0 });
    });
  }
  const cyclesOf = (node) =>
    (operationsOf.get(node) || []).reduce((sum, o) => sum + (o.first && o.operation.cost ? o.operation.cost.cycles : 0), 0);
  const place = (verdict) => (verdict.partition !== null ? "npu" : verdict.core ? "core" : "host");
  const names = { npu: "on the NPU", core: "in int8 on the core", host: "on the core, in float", input: "input" };
  const short = (operator) => operator.replace(/^aten\./, "").replace(/\.(default|Tensor|int|Scalar|dim|self_int)$/, "");

  // ---- the panel of details -----------------------------------------------------------------------------------------

  const panel = document.getElementById("details");
  const term = (name, ...value) => [element("dt", {}, name), element("dd", {}, ...value)];
  const code = (text) => element("code", {}, text);

  function show(node) {
    const verdict = verdicts.get(node);
    if (!verdict) {
      const input = report.inputs.find((i) => i.name === node);
      panel.replaceChildren(
        element("h3", {}, node),
        element("p", { class: "facts" }, input ? `input, ${input.dtype} ${shape(input.shape)}` : "input"),
      );
      return;
    }
    const list = element("dl", {});
    const where = place(verdict);
    list.append(...term("Runs", element("span", { class: `place ${where}` }, verdict.core ? `int8 on ${verdict.core}` : names[where]),
      where === "npu" ? `, partition ${verdict.partition}` : ""));
    if (verdict.shape.length) list.append(...term("Result", shape(verdict.shape)));
    if (verdict.macs) list.append(...term("MACs", count(verdict.macs)));
    if (verdict.module) list.append(...term("Module", code(verdict.module)));
    if (verdict.source) list.append(...term("Line", element("code", { title: verdict.source }, file(verdict.source))));
    if (verdict.rewrites.length) list.append(...term("Rewritten", verdict.rewrites.join(", ")));
    const error = errors[node];
    if (error) list.append(...term("SQNR", `${error.sqnr} dB here, ${error.own} dB by itself`));
    for (const reason of verdict.reasons) {
      list.append(...term("Rule", reason.sentence), ...term("Found", reason.detail));
      if (reason.hint) list.append(...term("Try", reason.hint));
    }
    const parts = [element("h3", {}, verdict.node, " ", element("span", { class: "operator" }, verdict.operator)), list];
    for (const { operation } of operationsOf.get(node) || []) {
      const facts = element("dl", {});
      facts.append(...term("Operation", code(operation.operation)), ...term("Result", `${operation.dtype} ${shape(operation.shape)}`));
      if (operation.scale !== null) facts.append(...term("Grid", `${operation.scale.toPrecision(6)} × (q ${operation.zero_point > 0 ? "−" : "+"} ${Math.abs(operation.zero_point)})`));
      if (operation.constant_bytes) facts.append(...term("Weights", `${count(operation.constant_bytes)} bytes`));
      if (operation.cost) {
        facts.append(...term("Cycles", `${count(operation.cost.cycles)}, arithmetic ${count(operation.cost.arithmetic_cycles)}`));
        for (const [memory, cycles] of Object.entries(operation.cost.memory_cycles)) {
          if (cycles) facts.append(...term(memory, `${count(cycles)} cycles`));
        }
        if (operation.cost.utilisation) facts.append(...term("MACs used", `${Math.round(100 * operation.cost.utilisation)} %`));
      }
      if (operation.passes.length) facts.append(...term("Passes", operation.passes.join(", ")));
      parts.push(element("h4", {}, `NPU operation, partition ${operation.partition}`), facts);
    }
    panel.replaceChildren(...parts);
  }
  const verdicts = new Map(report.verdicts.map((verdict) => [verdict.node, verdict]));

  // ---- the graph ----------------------------------------------------------------------------------------------------

  const NODE = { width: 150, height: 40 };
  const nodes = [];
  const edges = [];
  const seen = new Set(report.verdicts.map((verdict) => verdict.node));
  for (const verdict of report.verdicts) {
    for (const source of verdict.reads) {
      if (!seen.has(source)) {
        seen.add(source);
        nodes.push({ id: source, label: source, place: "input", cycles: 0, macs: 0, sqnr: null });
      }
      edges.push([source, verdict.node]);
    }
    nodes.push({ id: verdict.node, label: short(verdict.operator), place: place(verdict), cycles: cyclesOf(verdict.node), macs: verdict.macs, sqnr: errors[verdict.node] ? errors[verdict.node].sqnr : null });
  }

  // A network is laid out in pieces, cut where a single value passes (of a piece that gets too large: where the fewest do).
  // Equal pieces, of which networks are made, are laid out once: dagre takes half a millisecond for each operator.
  const PIECE = { least: 50, most: 120 };
  function pieces() {
    const number = new Map(nodes.map((n, i) => [n.id, i]));
    const last = nodes.map((_, i) => i);
    for (const [from, to] of edges) last[number.get(from)] = Math.max(last[number.get(from)], number.get(to));
    const passing = new Array(nodes.length + 1).fill(0);
    last.forEach((end, i) => {
      passing[i + 1] += 1;
      passing[end + 1] -= 1;
    });
    for (let i = 1; i < passing.length; ++i) passing[i] += passing[i - 1];
    const found = [];
    for (let begin = 0; begin < nodes.length; ) {
      let end = begin + 1;
      while (end < nodes.length && passing[end] > 1 && end < begin + PIECE.most) ++end;
      if (end < nodes.length && passing[end] > 1) {
        for (let at = end; at >= begin + PIECE.least; --at) if (passing[at] < passing[end]) end = at;
      }
      found.push(nodes.slice(begin, end));
      begin = end;
    }
    return found;
  }

  // Operators that follow each other with nothing beside them are one tall box for dagre, whose time grows with the boxes
  // and with the rows that an edge passes.
  function runs(ids, inside) {
    const ways = (side) => {
      const found = new Map(ids.map((id) => [id, []]));
      for (const edge of inside) found.get(edge[side]).push(edge[1 - side]);
      return found;
    };
    const [after, before] = [ways(0), ways(1)];
    const found = [];
    const place = new Map();
    for (const id of ids) {
      const [above] = before.get(id);
      const run = before.get(id).length === 1 && after.get(above).length === 1 ? place.get(above) : undefined;
      if (run) run.push(id);
      else found.push([id]);
      place.set(id, run || found[found.length - 1]);
    }
    return { found, place };
  }

  const GAP = 34;
  const tall = (run) => run.length * (NODE.height + GAP) - GAP;
  const shapes = new Map();
  function shapeOf(runs, between) {
    const key = JSON.stringify([runs.map((run) => run.length), between]);
    if (!shapes.has(key)) {
      const graph = new dagre.graphlib.Graph();
      graph.setGraph({ nodesep: 22, ranksep: GAP, edgesep: 150 });
      graph.setDefaultEdgeLabel(() => ({}));
      runs.forEach((run, i) => graph.setNode(String(i), { width: NODE.width, height: tall(run) }));
      for (const [from, to] of between) graph.setEdge(String(from), String(to));
      dagre.layout(graph);
      shapes.set(key, runs.map((_, i) => graph.node(String(i))));
    }
    return shapes.get(key);
  }

  // A piece hangs on the operator above it whose result it reads first, its door.
  const reads = new Map(nodes.map((n) => [n.id, []]));
  for (const [from, to] of edges) reads.get(to).push(from);
  const places = new Map();
  let below = 0;
  function layOut(piece) {
    const own = new Set(piece.map((n) => n.id));
    const drawn = piece.flatMap((n) => reads.get(n.id).map((from) => [from, n.id])).filter(([from]) => own.has(from) || places.has(from));
    const [door] = drawn.find(([from]) => !own.has(from)) || [null];
    const inside = drawn.filter(([from]) => own.has(from) || from === door);
    const { found, place } = runs(door === null ? [...own] : [door, ...own], inside);
    const number = new Map(found.map((run, i) => [run, i]));
    const between = inside.map((edge) => edge.map((id) => number.get(place.get(id)))).filter(([from, to]) => from !== to);
    const shape = shapeOf(found, between);
    const inShape = new Map();
    found.forEach((run, i) => run.forEach((id, down) => {
      inShape.set(id, { x: shape[i].x, y: shape[i].y - tall(run) / 2 + NODE.height / 2 + down * (NODE.height + GAP) });
    }));
    const from = door === null ? { x: 0, y: 0 } : inShape.get(door);
    const to = door === null ? { x: 0, y: 0 } : places.get(door);
    // Mirrored where pieces would lean further and further to one side.
    const side = to.x * (inShape.get(piece[piece.length - 1].id).x - from.x) > 0 ? -1 : 1;
    const top = Math.min(...piece.map((n) => inShape.get(n.id).y));
    const shift = Math.max(to.y - from.y, below - top);
    for (const { id } of piece) places.set(id, { x: to.x + side * (inShape.get(id).x - from.x), y: inShape.get(id).y + shift });
    below = Math.max(below, ...piece.map((n) => places.get(n.id).y + NODE.height + GAP));
    return drawn;
  }

  const modes = {
    place: { label: "where it runs", has: true },
    cycles: { label: "cycles", has: nodes.some((n) => n.cycles) },
    macs: { label: "MACs", has: nodes.some((n) => n.macs) },
    sqnr: { label: "error", has: nodes.some((n) => n.sqnr !== null) },
  };

  // From the page's soft colour to a strong one: the eye compares areas of one hue better than hues.
  function heat(share) {
    const part = Math.round(100 * Math.sqrt(Math.max(0, Math.min(1, share))));
    return { part, light: part < 55 };
  }
  const mix = (a, b, part) => {
    const rgb = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
    const [x, y] = [rgb(a), rgb(b)];
    return `rgb(${x.map((v, i) => Math.round(v + ((y[i] - v) * part) / 100)).join(",")})`;
  };

  function coloursOf(mode) {
    const text = style("--text"), card = style("--card");
    if (mode === "place") {
      return (node) => ({ fill: style(`--${node.place}-soft`), line: style(`--${node.place}`), ink: text });
    }
    const most = Math.max(...nodes.map((n) => (mode === "sqnr" ? 0 : n[mode])), 1);
    const worst = Math.min(...nodes.filter((n) => n.sqnr !== null).map((n) => n.sqnr), 60);
    return (node) => {
      const share = mode === "sqnr" ? (node.sqnr === null ? 0 : (60 - node.sqnr) / Math.max(60 - worst, 1)) : node[mode] / most;
      const { part, light } = heat(share);
      return { fill: mix(card, style("--heat"), part), line: style("--line-strong"), ink: light ? text : "#ffffff" };
    };
  }

  let left = [];
  // The network grows on the page some pieces at a time, so that its beginning is there at once and the page answers.
  function nextPieces() {
    const [piece, ready] = [[], []];
    while (left.length && piece.length < PIECE.most) {
      ready.push(...layOut(left[0]));
      piece.push(...left.shift());
    }
    const colour = coloursOf(mode);
    const cycles = (n) => (n.cycles ? `\n${count(n.cycles)} cycles` : n.macs ? `\n${count(n.macs)} MACs` : "");
    view.add([
      ...piece.map((n) => ({ data: { ...n, text: n.label + cycles(n), ...colour(n) }, position: places.get(n.id) })),
      ...ready.map(([source, target]) => ({ data: { id: `${source}→${target}`, source, target } })),
    ]);
    document.documentElement.dataset.graph = left.length ? "growing" : "ready";
  }
  function grow() {
    if (!left.length) return;
    nextPieces();
    setTimeout(grow, 0);
  }
  function all() {
    while (left.length) nextPieces();
  }

  let view = null;
  function drawGraph() {
    const box = document.getElementById("graph");
    view = cytoscape({
      container: box,
      style: [
        {
          selector: "node",
          style: {
            shape: "round-rectangle", width: NODE.width, height: NODE.height, label: "data(text)", "text-wrap": "wrap",
            "text-valign": "center", "font-size": 12, "line-height": 1.25, "background-color": "data(fill)",
            "border-color": "data(line)", "border-width": 1.2, color: "data(ink)", "min-zoomed-font-size": 6,
          },
        },
        { selector: "node[place = 'input']", style: { shape: "round-tag" } },
        { selector: "node:selected", style: { "border-width": 4 } },
        { selector: "node.faint", style: { opacity: 0.25 } },
        {
          selector: "edge",
          style: {
            width: 1.4, "line-color": style("--line-strong"), "target-arrow-color": style("--line-strong"),
            "target-arrow-shape": "triangle", "arrow-scale": 0.8, "curve-style": nodes.length > 600 ? "haystack" : "bezier",
          },
        },
      ],
      minZoom: 0.002, maxZoom: 3, autoungrabify: true, boxSelectionEnabled: false,
      pixelRatio: nodes.length > 600 ? 1 : "auto", hideEdgesOnViewport: nodes.length > 600,
      textureOnViewport: nodes.length > 600,
    });
    view.on("select", "node", (event) => show(event.target.id()));
    left = pieces();
    nextPieces();
    start();
    setTimeout(grow, 0);
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => paint(mode));
    box.addEventListener("keydown", keys);
  }

  // The beginning of the network at a size that can be read; the whole of it where that is readable, too.
  function start() {
    if (nodes.length <= PIECE.most) {
      view.fit(undefined, 24);
      if (view.zoom() > 1) view.zoom(1);
      if (view.zoom() >= 0.55) return view.center();
    }
    const first = view.nodes().min((n) => n.position("y")).ele;
    view.zoom(0.8);
    view.center(first);
    view.panBy({ x: 0, y: 40 - view.height() / 2 + 20 });
  }

  let mode = "place";
  function paint(next) {
    mode = next;
    const colour = coloursOf(mode);
    view.batch(() => view.nodes().forEach((n) => { n.data(colour(n.data())); }));
    view.style().selector("edge").style({ "line-color": style("--line-strong"), "target-arrow-color": style("--line-strong") }).update();
    document.querySelectorAll("#modes button").forEach((b) => b.setAttribute("aria-pressed", String(b.dataset.mode === mode)));
  }

  function select(id, centre = true) {
    all();
    const node = view.getElementById(id);
    if (!node.length) return;
    view.nodes(":selected").unselect();
    node.select();
    if (centre) view.animate({ center: { eles: node }, zoom: Math.max(view.zoom(), 0.8) }, { duration: 150 });
  }

  function whole() {
    all();
    view.fit(undefined, 24);
  }

  // Arrows walk along the edges, plus and minus zoom, Home shows the beginning and 0 all.
  function keys(event) {
    const chosen = view.nodes(":selected");
    const go = (next) => { if (next.length) select(next[0].id()); };
    const actions = {
      ArrowDown: () => go(chosen.length ? chosen.outgoers("node") : view.nodes().roots()),
      ArrowUp: () => go(chosen.incomers("node")),
      ArrowRight: () => beside(chosen, 1),
      ArrowLeft: () => beside(chosen, -1),
      "+": () => view.zoom({ level: view.zoom() * 1.25, renderedPosition: { x: view.width() / 2, y: view.height() / 2 } }),
      "-": () => view.zoom({ level: view.zoom() / 1.25, renderedPosition: { x: view.width() / 2, y: view.height() / 2 } }),
      Home: start,
      0: whole,
    };
    if (actions[event.key]) {
      actions[event.key]();
      event.preventDefault();
    }
  }
  function beside(chosen, direction) {
    if (!chosen.length) return;
    const y = chosen.position("y"), x = chosen.position("x");
    const row = view.nodes().filter((n) => Math.abs(n.position("y") - y) < NODE.height && (n.position("x") - x) * direction > 1);
    if (row.length) select(row.min((n) => Math.abs(n.position("x") - x)).ele.id());
  }

  function controls() {
    const bar = document.getElementById("modes");
    for (const [key, { label, has }] of Object.entries(modes)) {
      if (!has) continue;
      const button = element("button", { type: "button", "data-mode": key, "aria-pressed": String(key === mode) }, label);
      button.addEventListener("click", () => paint(key));
      bar.append(button);
    }
    const fit = element("button", { type: "button" }, "zoom to fit");
    fit.addEventListener("click", whole);
    bar.append(fit);
    const search = document.getElementById("search");
    search.addEventListener("input", () => {
      all();
      const wanted = search.value.trim().toLowerCase();
      const fits = (n) => [n.id(), n.data("label"), (verdicts.get(n.id()) || {}).module || "", file((verdicts.get(n.id()) || {}).source || "")]
        .some((text) => text.toLowerCase().includes(wanted));
      view.batch(() => view.nodes().forEach((n) => { n.toggleClass("faint", Boolean(wanted) && !fits(n)); }));
      const found = wanted ? view.nodes().filter(fits) : view.collection();
      document.getElementById("found").textContent = wanted ? `${found.length} found` : "";
      if (found.length) view.animate({ fit: { eles: found, padding: 60 } }, { duration: 150 });
    });
    search.addEventListener("keydown", (event) => {
      const found = view.nodes().not(".faint");
      if (event.key === "Enter" && search.value && found.length) select(found[0].id());
    });
  }

  // ---- cycles over time ---------------------------------------------------------------------------------------------

  function drawTimeline() {
    const box = document.getElementById("timeline");
    if (!box) return;
    const rows = report.operations.filter((o) => o.cost && o.cost.cycles);
    const total = rows.reduce((sum, o) => sum + o.cost.cycles, 0);
    const space = "http://www.w3.org/2000/svg";
    const svg = document.createElementNS(space, "svg");
    const height = 64, width = 1000;
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", `${count(total)} cycles in ${rows.length} operations, one after the other`);
    let at = 0;
    for (const operation of rows) {
      const part = document.createElementNS(space, "rect");
      const wide = (width * operation.cost.cycles) / total;
      const bound = operation.cost.bound_by in operation.cost.memory_cycles ? "memory" : "arithmetic";
      const attributes = { x: at, y: 0, width: Math.max(wide - 0.6, 0.2), height, class: bound };
      for (const [name, value] of Object.entries(attributes)) part.setAttribute(name, value);
      const title = document.createElementNS(space, "title");
      title.textContent = `${operation.operation} ${shape(operation.shape)}\n${count(operation.cost.cycles)} cycles (${((100 * operation.cost.cycles) / total).toFixed(1)} %), bound by ${operation.cost.bound_by}\n${file(operation.source)}`;
      part.append(title);
      part.addEventListener("click", () => {
        if (view && operation.nodes.length) select(operation.nodes[0]);
        document.getElementById("network").scrollIntoView({ behavior: "smooth" });
      });
      svg.append(part);
      at += wide;
    }
    box.append(svg);
  }

  // ---- memory over time ---------------------------------------------------------------------------------------------

  // A drawing of memory: `draw` is given what makes a rectangle of it, with words for the pointer.
  function drawMemory(box, words, draw) {
    const space = "http://www.w3.org/2000/svg";
    const width = 1000, height = 220;
    const svg = document.createElementNS(space, "svg");
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", words);
    draw((x, y, w, h, kind, words) => {
      const made = document.createElementNS(space, "rect");
      for (const [name, value] of Object.entries({ x, y, width: w, height: h, class: kind })) made.setAttribute(name, value);
      const title = document.createElementNS(space, "title");
      title.textContent = words;
      made.append(title);
      svg.append(made);
    }, width, height);
    box.prepend(svg);
  }

  function drawArena(box) {
    const arena = report.memory.arenas[box.dataset.arena];
    const steps = Math.max(arena.steps.length, ...arena.tensors.map((t) => t.last + 1));
    const words = `${arena.tensors.length} tensors in ${count(arena.bytes)} bytes over ${steps} steps`;
    drawMemory(box, words, (rectangle, width, height) => {
      const at = (step) => (width * step) / steps;
      rectangle(at(arena.peak_step), 0, at(1), height, "peak", `the peak: ${arena.steps[arena.peak_step] || ""}`);
      for (const t of arena.tensors) {
        // Offsets grow upwards, as memory is drawn.
        const tall = (height * t.bytes) / arena.bytes;
        rectangle(at(t.first), height - (height * (t.offset + t.bytes)) / arena.bytes, at(t.last - t.first + 1), Math.max(tall, 1),
          arena.peak.includes(t.name) ? "tensor top" : "tensor",
          `${t.name}\n${count(t.bytes)} bytes at ${count(t.offset)}\n${arena.steps[t.first] || ""} to ${arena.steps[t.last] || ""}`);
      }
    });
  }

  function drawInside(box) {
    const part = report.memory.inside[box.dataset.inside];
    const most = Math.max(...part.bytes);
    drawMemory(box, `memory of the NPU over ${part.bytes.length} operations, at most ${count(most)} bytes`, (rectangle, width, height) => {
      const wide = width / part.bytes.length;
      part.bytes.forEach((size, i) => {
        const tall = Math.max((height * size) / most, 1);
        const kind = i === part.peak_step ? "tensor top" : "tensor";
        rectangle(wide * i, height - tall, wide, tall, kind, `${part.steps[i]}\n${count(size)} bytes in use`);
      });
    });
  }

  drawTimeline();
  document.querySelectorAll("[data-arena]").forEach(drawArena);
  document.querySelectorAll("[data-inside]").forEach(drawInside);
  // The page is painted first; a large network takes a moment.
  requestAnimationFrame(() => setTimeout(() => {
    if (!nodes.length) return;
    drawGraph();
    controls();
  }, 0));
})();
