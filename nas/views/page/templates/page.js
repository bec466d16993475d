"use strict";
(() => {
  const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];
  const one = (selector) => document.querySelector(selector);
  document.documentElement.classList.add("js");

  // ---- tips: the titles that show without scripts become one tip that also follows the keyboard
  const tip = one("#tip");
  const details = new Map(), nodes = new Map(), dots = new Map(), edges = new Map();
  for (const node of all(".tree .node")) {
    const title = node.querySelector("title");
    details.set(node.dataset.n, title.textContent);
    title.remove();
    nodes.set(node.dataset.n, node);
  }
  for (const dot of all(".score[data-n]")) {
    dot.querySelector("title").remove();
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
    tip.textContent = details.get(number);
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

  // ---- the table: sort by a column, filter by words
  const body = one("tbody"), filter = one("#filter"), counted = one("#counted");
  if (!body) return;
  const heads = all("thead th");
  const value = (row, column) => {
    const cell = row.cells[column];
    return cell.dataset.v !== undefined ? cell.dataset.v : cell.textContent;
  };
  heads.forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const now = head.getAttribute("aria-sort");
      const order = now ? (now === "ascending" ? "descending" : "ascending") : head.dataset.first || "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", order);
      const sign = order === "ascending" ? 1 : -1, numeric = head.classList.contains("n");
      const keyed = [...body.rows].map((row, place) => [value(row, column), row, place]);
      keyed.sort(([a, , i], [b, , j]) => {
        if (a === "" || b === "") return a === b ? i - j : a === "" ? 1 : -1;
        const difference = numeric ? a - b : a.localeCompare(b, "en", { numeric: true });
        return sign * difference || i - j;
      });
      body.append(...keyed.map(([, row]) => row));
    });
  });
  let texts = null;
  const sift = () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    texts = texts || new Map([...body.rows].map((row) => [row, [...row.cells].map((c) => c.textContent).join(" ").toLowerCase()]));
    let n = 0;
    for (const [row, text] of texts) {
      const matches = words.every((word) => text.includes(word));
      n += matches;
      row.hidden = !matches;
      const number = row.dataset.n;
      for (const mark of [nodes.get(number), ...(dots.get(number) || [])]) {
        if (mark) mark.classList.toggle("dim", !matches);
      }
    }
    tree.classList.toggle("sifted", words.length > 0);
    counted.textContent = words.length ? `${n} of ${texts.size} trials` : "";
  };
  filter.addEventListener("input", sift);
  addEventListener("hashchange", () => {
    const row = document.getElementById(location.hash.slice(1));
    if (row && row.hidden) {
      filter.value = "";
      sift();
      row.scrollIntoView();
    }
  });
})();
