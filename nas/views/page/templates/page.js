"use strict";
(() => {
  const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];
  const one = (selector) => document.querySelector(selector);
  document.documentElement.classList.add("js");
  const data = JSON.parse(one("#data").textContent);
  const element = (space) => (tag, attributes = {}, ...inner) => {
    const made = space ? document.createElementNS(space, tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...inner);
    return made;
  };
  const el = element(null), svg = element(one("svg").namespaceURI);

  // ---- tips: the titles that show without scripts become one tip that also follows the keyboard
  const tip = one("#tip");
  const tips = new Map(), nodes = new Map(), dots = new Map(), edges = new Map();
  const summary = (n) => (data.trials[n] || {}).summary;
  for (const node of all(".tree .node")) {
    const title = node.querySelector("title");
    tips.set(node, title.textContent);
    title.remove();
    nodes.set(node.dataset.n, node);
  }
  for (const dot of all(".score[data-n]")) {
    const title = dot.querySelector("title");
    tips.set(dot, summary(dot.dataset.n) || title.textContent);
    title.remove();
    dots.set(dot.dataset.n, [...(dots.get(dot.dataset.n) || []), dot]);
  }
  for (const edge of all(".tree .edge[data-c]")) {
    const child = edge.dataset.c;
    edges.set(child, [...(edges.get(child) || []), edge]);
  }
  let hot = [];
  const cool = () => {
    hot.forEach((element) => element.classList.remove("hot"));
    hot = [];
    tip.hidden = true;
  };
  const warm = (target) => {
    cool();
    const number = target.dataset.n;
    const seen = new Set();
    for (let n = number; n !== undefined && nodes.has(n) && !seen.has(n); n = nodes.get(n).dataset.p) {
      seen.add(n);
      hot.push(nodes.get(n), ...(edges.get(n) || []).filter((e) => n === number || e.dataset.s === nodes.get(n).dataset.p));
    }
    hot.push(...(dots.get(number) || []));
    hot.forEach((element) => element.classList.add("hot"));
    if (target.closest("table")) return;
    tip.textContent = tips.get(target);
    tip.hidden = false;
    const at = target.getBoundingClientRect(), size = tip.getBoundingClientRect();
    const left = Math.min(Math.max(8, at.left + at.width / 2 - 40), innerWidth - size.width - 8);
    const below = at.bottom + 10, above = at.top - size.height - 10;
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${below + size.height < innerHeight || above < 8 ? Math.min(below, innerHeight - size.height - 8) : above}px`;
  };
  for (const event of ["mouseover", "focusin"]) {
    document.addEventListener(event, ({ target }) => {
      const found = target.closest && target.closest("[data-n]");
      if (found) warm(found);
      else if (event === "mouseover") cool();
    });
  }
  document.addEventListener("focusout", cool);
  document.addEventListener("scroll", () => (tip.hidden = true), { capture: true, passive: true });
  document.addEventListener("keydown", (event) => event.key === "Escape" && cool());

  // ---- the tree: zoom by button or ctrl + wheel, drag to move
  const view = one(".view"), tree = one(".view .tree");
  if (view && tree) {
    const natural = tree.viewBox.baseVal.width;
    const scale = () => tree.getBoundingClientRect().width / natural;
    const zoom = (to, x = view.clientWidth / 2, y = view.clientHeight / 2) => {
      const before = scale(), after = Math.min(8, Math.max(0.05, to));
      const left = (view.scrollLeft + x) / before, top = (view.scrollTop + y) / before;
      tree.style.width = `${natural * after}px`;
      tree.style.minWidth = "0";
      tree.style.height = "auto";
      view.scrollLeft = left * after - x;
      view.scrollTop = top * after - y;
    };
    const fitting = () => (view.clientWidth - 18) / natural;
    const actions = { in: () => zoom(scale() * 1.3), out: () => zoom(scale() / 1.3), fit: () => zoom(fitting()), full: () => zoom(1) };
    for (const button of all("[data-zoom]")) button.addEventListener("click", actions[button.dataset.zoom]);
    if (!tree.classList.contains("dense") && fitting() < 1 && fitting() > 0.72) zoom(fitting());
    view.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      const box = view.getBoundingClientRect();
      zoom(scale() * Math.exp(-event.deltaY / 300), event.clientX - box.left, event.clientY - box.top);
    }, { passive: false });
    let from = null;
    view.addEventListener("pointerdown", (event) => {
      if (event.pointerType !== "mouse" || event.button !== 0) return;
      from = { x: event.clientX, y: event.clientY, left: view.scrollLeft, top: view.scrollTop };
    });
    addEventListener("pointermove", (event) => {
      if (!from) return;
      const dx = event.clientX - from.x, dy = event.clientY - from.y;
      if (!view.classList.contains("dragged") && Math.hypot(dx, dy) < 5) return;
      view.classList.add("dragged");
      view.scrollLeft = from.left - dx;
      view.scrollTop = from.top - dy;
    });
    addEventListener("pointerup", () => {
      from = null;
      setTimeout(() => view.classList.remove("dragged"));
    });
    view.addEventListener("click", (event) => view.classList.contains("dragged") && event.preventDefault(), true);
    view.addEventListener("dragstart", (event) => event.preventDefault());
  }

  // ---- the table: sort by a column, filter by words and conditions, a page of rows at a time
  const PAGE = 500;
  const body = one("#table tbody"), filter = one("#filter"), counted = one("#counted"), heads = all("#table thead th");
  const names = heads.map((head) => head.textContent);
  const entries = [
    ...all("tr", body).map((row) => ({ n: row.dataset.n, row })),
    ...data.rows.map(([n, kind, cells]) => ({ n: String(n), kind, cells: [String(n), ...cells] })),
  ];
  const place = new Map(entries.map((entry) => [entry.n, entry]));
  const cellsOf = (entry) => {
    entry.cells = entry.cells || [...entry.row.cells].map((c) => (c.dataset.v === undefined ? c.textContent : [c.textContent, c.dataset.v]));
    return entry.cells;
  };
  const text = (cell) => (typeof cell === "string" ? cell : cell[0]);
  const value = (entry, column) => {
    const cell = cellsOf(entry)[column];
    return typeof cell === "string" || heads[column].dataset.kind === "link" ? text(cell) : cell[1];
  };
  const link = (n, shown = n) => el("a", { href: `#trial-${n}` }, String(shown));
  const drawCell = (cell, column) => {
    const { kind } = heads[column].dataset, shown = text(cell);
    const classes = heads[column].classList.contains("n") ? ["n"] : [];
    if (kind === "metric") classes.push("metric");
    else if (!classes.length && shown.length > 48) classes.push("long");
    const td = el("td", classes.length ? { class: classes.join(" ") } : {});
    if (kind === "link" && typeof cell !== "string") td.append(link(cell[1], shown));
    else if (kind === "state") td.append(el("span", { class: `chip ${shown.toLowerCase()}` }, shown));
    else td.append(shown);
    if (classes.includes("long")) td.title = shown;
    return td;
  };
  const rowOf = (entry) => {
    if (entry.row) return entry.row;
    entry.row = el("tr", { id: `trial-${entry.n}`, "data-n": entry.n, class: entry.kind });
    entry.row.append(el("th", { scope: "row", class: "n" }, link(entry.n)), ...entry.cells.slice(1).map((cell, i) => drawCell(cell, i + 1)));
    return entry.row;
  };
  let kept = entries, page = 0, sorting = null;
  const show = () => {
    page = Math.max(0, Math.min(page, Math.ceil(kept.length / PAGE) - 1));
    const first = page * PAGE, rows = kept.slice(first, first + PAGE).map(rowOf);
    body.replaceChildren(...rows);
    one(".pages").hidden = kept.length <= PAGE;
    one("#paged").textContent = `rows ${first + 1} to ${first + rows.length} of ${kept.length.toLocaleString("en")}`;
  };
  for (const button of all("[data-page]")) button.addEventListener("click", () => { page += Number(button.dataset.page); show(); });
  const order = () => {
    if (!sorting) return;
    const { column, sign } = sorting, numeric = heads[column].classList.contains("n");
    const keyed = kept.map((entry, at) => [value(entry, column), entry, at]);
    keyed.sort(([a, , i], [b, , j]) => {
      if (a === "" || b === "") return a === b ? i - j : a === "" ? 1 : -1;
      const difference = numeric ? a - b : a.localeCompare(b, "en", { numeric: true });
      return sign * difference || i - j;
    });
    kept = keyed.map(([, entry]) => entry);
  };
  const sortBy = (column, direction) => {
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    heads[column].setAttribute("aria-sort", direction);
    sorting = { column, sign: direction === "ascending" ? 1 : -1 };
    sift();
  };
  heads.forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const now = head.getAttribute("aria-sort");
      sortBy(column, now ? (now === "ascending" ? "descending" : "ascending") : head.dataset.first || "ascending");
    });
  });
  const compare = { "=": (d) => d === 0, "!=": (d) => d !== 0, "<": (d) => d < 0, "<=": (d) => d <= 0, ">": (d) => d > 0, ">=": (d) => d >= 0 };
  const condition = (word) => {
    const found = /^([^<>=!]+)(!=|<=|>=|=|<|>)(.+)$/.exec(word);
    const column = found ? names.findIndex((n) => n.toLowerCase() === found[1]) : -1;
    const at = found && column < 0 ? names.findIndex((n) => n.toLowerCase().endsWith(`.${found[1]}`)) : column;
    if (at < 0) return (entry) => entry.text.includes(word);
    const holds = compare[found[2]], options = found[3].split(",");
    return (entry) => {
      const own = value(entry, at).toLowerCase(), shown = text(cellsOf(entry)[at]).toLowerCase();
      if (own === "") return found[2] === "!=";
      const matches = (option) => {
        const isNumber = !isNaN(own) && option.trim() !== "" && !isNaN(option);
        const difference = isNumber ? own - option : shown === option ? 0 : own.localeCompare(option, "en", { numeric: true });
        return holds(difference);
      };
      return found[2] === "!=" ? options.every(matches) : options.some(matches);
    };
  };
  const sift = () => {
    const tests = filter.value.toLowerCase().split(/\s+/).filter(Boolean).map(condition);
    if (tests.length) for (const entry of entries) entry.text ||= cellsOf(entry).map(text).join(" ").toLowerCase();
    kept = entries.filter((entry) => tests.every((test) => test(entry)));
    const matching = new Set(tests.length ? kept.map((entry) => entry.n) : []);
    for (const marks of [nodes, dots]) {
      for (const [n, found] of marks) {
        for (const mark of [found].flat()) mark.classList.toggle("dim", tests.length > 0 && !matching.has(n));
      }
    }
    document.documentElement.classList.toggle("sifted", tests.length > 0);
    counted.textContent = tests.length ? `${kept.length} of ${entries.length} trials` : "";
    page = 0;
    order();
    show();
  };
  filter.addEventListener("input", sift);
  if (entries.length > PAGE) show();

  // ---- a chosen trial: its changes, learning curve, error and architecture
  const panel = one("#trial");
  const children = new Map();
  for (const [n, { parent }] of Object.entries(data.trials)) {
    if (parent !== undefined) children.set(String(parent), [...(children.get(String(parent)) || []), n]);
  }
  const ticks = (low, high, n) => {
    if (!(high > low)) return [low];
    const raw = (high - low) / n, power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((f) => f * power).find((s) => s >= raw * 0.999);
    const found = [];
    for (let i = Math.ceil(low / step - 1e-9); i <= high / step + 1e-9; i++) found.push(Number((i * step).toPrecision(12)));
    return found;
  };
  const curveChart = (lines) => {
    const W = 460, H = 240, left = 52, right = W - 8, top = 10, bottom = H - 34;
    const steps = lines.flatMap(({ curve }) => curve[0]), values = lines.flatMap(({ curve }) => curve[1]);
    const ends = (numbers) => numbers.reduce(([a, b], v) => [Math.min(a, v), Math.max(b, v)], [Infinity, -Infinity]);
    const [x0, x1] = ends(steps), [low, high] = ends(values);
    const pad = (high - low || Math.abs(high) || 1) * 0.05, y0 = low - pad, y1 = high + pad;
    const x = (v) => left + 4 + (right - left - 8) * (x1 > x0 ? (v - x0) / (x1 - x0) : 0.5);
    const y = (v) => bottom - (bottom - top) * ((v - y0) / (y1 - y0));
    const chart = svg("svg", { class: "curve", viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": "Learning curves" });
    for (const v of ticks(y0, y1, 4)) {
      chart.append(svg("path", { class: "grid", d: `M${left} ${y(v)}H${right}` }), svg("text", { x: left - 6, y: y(v) + 4, "text-anchor": "end" }, String(v)));
    }
    for (const v of ticks(x0, x1, 6)) chart.append(svg("text", { x: x(v), y: bottom + 16, "text-anchor": "middle" }, String(v)));
    chart.append(svg("text", { class: "name", x: (left + right) / 2, y: H - 4, "text-anchor": "middle" }, "step"));
    for (const { kind, n, curve } of lines) {
      const points = curve[0].map((step, i) => `${x(step).toFixed(1)} ${y(curve[1][i]).toFixed(1)}`);
      const title = svg("title", {}, `trial ${n}: ${Number(curve[1][curve[1].length - 1].toPrecision(4))} at step ${curve[0][curve[0].length - 1]}`);
      const line = svg("path", { class: `learning ${kind}`, d: `M${points.join("L")}${points.length < 2 ? "h.01" : ""}` }, title);
      chart.append(line);
    }
    return chart;
  };
  const relatives = (n) => {
    const { parent, stage } = data.trials[n];  // trials of later stages are far longer
    const siblings = (children.get(String(parent)) || []).filter((other) => other !== n && data.trials[other].stage === stage);
    return [...siblings.map((other) => ["sibling", other]), ...(parent === undefined ? [] : [["parent", String(parent)]]), ["own", n]];
  };
  const curves = (n) => {
    const own = data.trials[n].curves;
    if (!own) return [el("p", { class: "soft" }, "It has no learning curve: it called run.report for no step, or has not finished.")];
    const box = el("div"), choice = el("select", { "aria-label": "Metric" });
    for (const name of Object.keys(own)) choice.append(el("option", {}, name));
    if (data.metric in own) choice.value = data.metric;
    const draw = () => {
      const lines = relatives(n).map(([kind, other]) => ({ kind, n: other, curve: (data.trials[other].curves || {})[choice.value] }));
      const drawn = lines.filter(({ curve }) => curve);
      const legend = el("ul", { class: "legend" });
      for (const [kind, said] of [["own", "this trial"], ["parent", "parent"], ["sibling", "siblings of its stage"]]) {
        const found = drawn.filter((line) => line.kind === kind);
        if (!found.length) continue;
        const sample = svg("svg", { width: 24, height: 12, "aria-hidden": "true" }, svg("path", { class: `learning ${kind}`, d: "M1 6H23" }));
        const item = el("li", {}, sample, `${said} `);
        found.slice(0, 12).forEach((line, i) => item.append(i ? ", " : "", link(line.n)));
        if (found.length > 12) item.append(` and ${found.length - 12} more`);
        legend.append(item);
      }
      box.replaceChildren(curveChart(drawn), legend);
    };
    choice.addEventListener("change", draw);
    draw();
    return Object.keys(own).length > 1 ? [choice, box] : [box];
  };
  const changed = ({ parent, changes, n_changes }) => {
    const about = el("p", { class: "soft" }, "Changed against parent ", link(parent), changes.length ? ":" : ": nothing");
    const rows = changes.map(([name, before, after]) => el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, before), el("td", {}, `→ ${after}`)));
    const more = n_changes > changes.length ? [el("p", { class: "soft" }, `and ${n_changes - changes.length} more`)] : [];
    return [about, ...(rows.length ? [el("table", { class: "changes" }, el("tbody", {}, ...rows))] : []), ...more];
  };
  const drawn = ([width, height, boxes, edges]) => {
    const [w, h] = data.box;
    const picture = svg("svg", { class: "architecture", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": "Architecture" });
    for (const edge of edges) picture.append(svg("path", { class: "flow", d: edge }));
    for (const [x, y, name, about, isNew] of boxes) {
      const box = svg("g", { class: isNew ? "box new" : "box", transform: `translate(${x} ${y})` }, svg("rect", { width: w, height: h, rx: 5 }));
      box.append(svg("text", { x: w / 2, y: about ? 16 : 24, class: "number" }, name), svg("text", { x: w / 2, y: 31, class: "soft" }, about));
      picture.append(box);
    }
    return el("div", { class: "plot", tabindex: 0, role: "region", "aria-label": "Architecture" }, picture);
  };
  const values = (n) => {
    const cells = cellsOf(place.get(n)).map(text), list = el("dl");
    names.forEach((name, i) => cells[i] && list.append(el("dt", {}, name), el("dd", {}, cells[i])));
    return el("details", {}, el("summary", {}, "All values"), list);
  };
  const describe = (n) => {
    const trial = data.trials[n];
    if (!trial) return [el("p", {}, "Details of this trial are left out of this page. ", el("code", {}, `heirloom report name=${data.name} trial=${n}`), " shows it.")];
    const parts = [el("p", { class: "summary" }, trial.summary.split("\n").slice(1).join("\n"))];
    const add = (title, ...inner) => parts.push(el("h3", {}, title), ...inner);
    if (trial.error) add("Error", el("pre", { tabindex: 0 }, trial.error));
    if (trial.changes) add("Changes", ...changed(trial));
    add("Learning curves", ...curves(n));
    if (trial.architecture) {
      const hint = trial.changes ? [el("p", { class: "soft" }, "Boxes that differ from the parent's are emphasized.")] : [];
      add("Architecture", ...hint, drawn(trial.architecture));
    }
    return parts;
  };
  let opener = null, chosen = null;
  const at = (offset) => {
    const order = kept.includes(place.get(chosen)) ? kept : entries;
    const entry = order[order.indexOf(place.get(chosen)) + offset];
    return entry && entry.n;
  };
  const close = () => {
    panel.hidden = true;
    document.documentElement.classList.remove("open");
    if (opener.isConnected) opener.focus({ preventScroll: true });
    chosen = opener = null;
    history.replaceState(null, "", location.pathname + location.search);
  };
  const step = (offset, said, text) => {
    const button = el("button", { type: "button", "aria-label": said, title: said }, text);
    button.disabled = at(offset) === undefined;
    button.addEventListener("click", () => go(`#trial-${at(offset)}`));
    return button;
  };
  const choose = (n) => {
    opener = opener || document.activeElement;
    chosen = n;
    const shut = el("button", { type: "button", "aria-label": "close", title: "close (Escape)" }, "×");
    shut.addEventListener("click", close);
    const title = (summary(n) || `trial ${n}`).split("\n")[0];
    const bar = el("div", { class: "bar" }, el("h2", {}, title), step(-1, "previous trial", "‹"), step(1, "next trial", "›"), shut);
    panel.replaceChildren(bar, ...describe(n), values(n));
    panel.hidden = false;
    document.documentElement.classList.add("open");
    panel.scrollTop = 0;
    panel.focus({ preventScroll: true });
    tip.hidden = true;
  };
  const named = () => place.get((/^#trial-(\d+)$/.exec(location.hash) || [])[1]);
  const open = (entry) => {
    all(".chosen", body).forEach((row) => row.classList.remove("chosen"));
    rowOf(entry).classList.add("chosen");
    choose(entry.n);
  };
  const follow = () => {
    const entry = named();
    if (!entry) return;
    if (!kept.includes(entry)) {
      filter.value = "";
      sift();
    }
    page = Math.floor(kept.indexOf(entry) / PAGE);
    show();
    open(entry);
  };
  const go = (hash) => {
    location.hash = hash;
    follow();  // at once: the next key may come before the hashchange
  };
  addEventListener("hashchange", () => location.hash === `#trial-${chosen}` || follow());
  document.addEventListener("click", (event) => {
    const found = event.target.closest("a[href^='#trial-']");
    if (!found || event.defaultPrevented) return;
    event.preventDefault();  // the panel has the details; the page stays in its place
    if (found.dataset.fold) {
      filter.value = `trial=${found.dataset.fold}`;
      sift();
      one("#table").scrollIntoView();
      return;
    }
    opener = opener || found;
    go(found.getAttribute("href"));
  });
  document.addEventListener("keydown", (event) => {
    if (event.target.closest("input, select")) return;
    if (event.key === "/") {
      event.preventDefault();
      filter.focus();
    }
    if (panel.hidden || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") close();
    const offset = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (offset && panel.contains(event.target) && !event.target.closest("pre, .plot") && at(offset) !== undefined) go(`#trial-${at(offset)}`);
  });
  // ---- a running search: load the page again, with filter, order, zoom, places and focus as they were
  const key = `heirloom-page-${data.name}`;
  const remember = (paused) => {
    const state = {
      paused, filter: filter.value, page,
      sorted: sorting && [names[sorting.column], sorting.sign > 0 ? "ascending" : "descending"],
      tree: [tree.style.width, view.scrollLeft, view.scrollTop],
      places: [scrollX, scrollY, panel.scrollTop],
      focus: document.activeElement.id,
    };
    sessionStorage.setItem(key, JSON.stringify(state));
  };
  const recall = () => {
    const state = JSON.parse(sessionStorage.getItem(key) || "null");
    sessionStorage.removeItem(key);
    if (!state) return false;
    filter.value = state.filter;
    const column = state.sorted ? names.indexOf(state.sorted[0]) : -1;
    if (column >= 0) sortBy(column, state.sorted[1]);
    else if (state.filter) sift();
    page = state.page;
    show();
    if (named()) open(named());
    if (state.tree[0]) Object.assign(tree.style, { width: state.tree[0], minWidth: "0", height: "auto" });
    [view.scrollLeft, view.scrollTop] = state.tree.slice(1);
    panel.scrollTop = state.places[2];
    const focused = document.getElementById(state.focus);
    if (focused) focused.focus({ preventScroll: true });
    scrollTo(...state.places.slice(0, 2));
    return state.paused;
  };
  let paused = false, typed = 0;
  try {
    history.scrollRestoration = sessionStorage.getItem(key) ? "manual" : "auto";
    paused = recall();
  } catch (error) {
    console.warn(`this page forgets its filter when it loads again: ${error}`);
  }
  if (panel.hidden) follow();
  if (data.live_s) {
    const hold = one("#hold");
    const mark = () => {
      hold.textContent = paused ? "go on" : "pause";
      hold.setAttribute("aria-pressed", String(paused));
    };
    hold.addEventListener("click", () => {
      paused = !paused;
      mark();
    });
    mark();
    filter.addEventListener("input", () => (typed = Date.now()));
    setInterval(() => {
      if (paused || document.hidden || Date.now() - typed < 2000) return;
      try {
        remember(paused);
      } finally {
        location.reload();
      }
    }, 1000 * data.live_s);
  }
})();
