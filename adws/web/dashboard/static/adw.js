// Keeps a page of the dashboard up to date. Without it every page can be read and every button works.
(() => {
  "use strict";

  const SECOND = 1000;
  const topic = document.body.dataset.topic;
  const state = document.getElementById("live-state");

  // --- times ---------------------------------------------------------------------------------------------------

  const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const age = (seconds) => {
    for (const [size, unit] of UNITS) {
      if (Math.abs(seconds) >= size) {
        const count = Math.floor(Math.abs(seconds) / size);
        return seconds > 0 ? `${count} ${unit} ago` : `in ${count} ${unit}`;
      }
    }
    return "now";
  };
  const elapsed = (seconds) => {
    const whole = Math.max(0, Math.floor(seconds));
    if (whole < 60) return `${whole} s`;
    if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
    if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
    return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
  };
  const made = document.querySelector(".foot time");
  // The clock of the server counts: that of this machine may be wrong.
  let skew = made ? Date.parse(made.dateTime) - Date.now() : 0;
  const say = (element, text) => { if (element.textContent !== text) element.textContent = text; };
  const tick = () => {
    const now = Date.now() + skew;
    for (const one of document.querySelectorAll("time[data-age]")) say(one, age((now - Date.parse(one.dateTime)) / SECOND));
    for (const one of document.querySelectorAll("time[data-since]")) say(one, elapsed((now - Date.parse(one.dateTime)) / SECOND));
  };
  setInterval(() => { if (!document.hidden) tick(); }, SECOND);

  // --- putting new parts in the place of old ones --------------------------------------------------------------

  const isTyping = (element) => {
    const active = document.activeElement;
    if (active && element.contains(active) && active.matches("input, textarea, select")) return true;
    return [...element.querySelectorAll("textarea, input:not([type=hidden])")]
      .some((one) => one.value !== one.defaultValue || one.checked !== one.defaultChecked);
  };
  // The way from an element down to the focus, for elements without an id.
  const pathTo = (root, target) => {
    const path = [];
    for (let one = target; one !== root; one = one.parentElement) path.unshift([...one.parentElement.children].indexOf(one));
    return path;
  };
  const follow = (root, path) => path.reduce((one, index) => one && one.children[index], root);
  // What leads to the same place or does the same is the same, wherever it stands now.
  const meaning = (one) => one.getAttribute("href") || (one.form && `${one.form.getAttribute("action")} ${one.name || ""} ${one.textContent}`);
  const same = (root, tag, said) => said && [...root.querySelectorAll(tag)].find((one) => meaning(one) === said);
  const keep = (old, fresh) => {
    const isOpen = new Map([...old.querySelectorAll("details[id]")].map((one) => [one.id, one.open]));
    for (const one of fresh.querySelectorAll("details[id]")) if (isOpen.has(one.id)) one.open = isOpen.get(one.id);
    const scrolled = [...old.querySelectorAll("*"), old].filter((one) => one.scrollTop || one.scrollLeft)
      .map((one) => [one.id, one.id ? null : pathTo(old, one), one.scrollLeft, one.scrollTop]);
    const active = document.activeElement;
    const focus = active && old.contains(active) ? [active.id, pathTo(old, active), active.tagName, meaning(active)] : null;
    old.replaceWith(fresh);
    for (const [id, path, left, top] of scrolled) {
      const one = id ? document.getElementById(id) : follow(fresh, path);
      if (one) { one.scrollLeft = left; one.scrollTop = top; }
    }
    if (focus) {
      const one = (focus[0] && document.getElementById(focus[0])) || same(fresh, focus[2], focus[3]) || follow(fresh, focus[1]);
      if (one && one.tagName === focus[2]) one.focus({ preventScroll: true });
    }
  };
  const put = (text) => {
    const page = new DOMParser().parseFromString(text, "text/html");
    const stamp = page.querySelector(".foot time");
    if (stamp) skew = Date.parse(stamp.dateTime) - Date.now();
    for (const old of document.querySelectorAll("[data-live][id]")) {
      if (old.parentElement.closest("[data-live][id]")) continue;
      const fresh = page.getElementById(old.id);
      if (!fresh || old.isEqualNode(fresh) || isTyping(old) || old.querySelector("[data-tail]")) continue;
      fresh.setAttribute("data-fresh", "");
      keep(old, document.adoptNode(fresh));
      setTimeout(() => fresh.removeAttribute("data-fresh"), 2 * SECOND);
    }
    if (page.title) document.title = page.title;
    tick();
  };

  // --- live ----------------------------------------------------------------------------------------------------

  const show = (word, text) => {
    if (!state || state.dataset.state === word) return;
    state.dataset.state = word;
    state.textContent = text;
  };
  let isBusy = false;
  let isStale = false;
  const refresh = async () => {
    if (document.hidden || isBusy) { isStale = true; return; }
    isBusy = true;
    isStale = false;
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" }, cache: "no-store" });
      if (answer.redirected) { location.reload(); return; }
      if (answer.ok) put(await answer.text());
    } catch {
      isStale = true;
    }
    // Not more often than this, however much happens.
    setTimeout(() => { isBusy = false; if (isStale) refresh(); }, SECOND);
  };
  document.addEventListener("visibilitychange", () => { if (!document.hidden && isStale) refresh(); });

  const LONGEST = 30 * SECOND;
  let wait = SECOND;
  let seen = "";
  let source = null;
  // What was seen last is told, so that the server knows whether this page is old by now.
  const listen = () => {
    source = new EventSource(`/live?topic=${encodeURIComponent(topic)}&since=${encodeURIComponent(seen)}`);
    source.onopen = () => {
      wait = SECOND;
      show("on", "Live");
    };
    source.addEventListener("changed", (event) => {
      seen = event.lastEventId;
      refresh();
    });
    source.onerror = () => {
      source.close();
      show("lost", "Connection lost, retrying");
      if (wait > 2 * SECOND) refresh(); // finds out when the login is over
      setTimeout(listen, wait * (0.75 + Math.random() / 2));
      wait = Math.min(LONGEST, wait * 2);
    };
  };
  window.addEventListener("pagehide", () => { if (source) source.close(); });
  if (topic && window.EventSource) listen();
  // A page that comes back from the browser's memory is old.
  window.addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });

  // --- tails ---------------------------------------------------------------------------------------------------

  const MOST_CHARACTERS = 1000000;
  const tail = (element) => {
    let next = element.dataset.tail;
    let pause = SECOND;
    const again = () => setTimeout(step, pause);
    const step = async () => {
      if (!element.isConnected) return;
      if (document.hidden) { again(); return; }
      try {
        const answer = await fetch(next, { cache: "no-store" });
        if (!answer.ok || answer.redirected) throw new Error(answer.statusText);
        const text = await answer.text();
        const isAtEnd = element.scrollHeight - element.scrollTop - element.clientHeight < 40;
        if (text) {
          element.append(text);
          let length = element.textContent.length;
          while (length > MOST_CHARACTERS && element.childNodes.length > 1) {
            length -= element.firstChild.textContent.length;
            element.firstChild.remove();
          }
          if (isAtEnd) element.scrollTop = element.scrollHeight;
        }
        pause = text ? SECOND : Math.min(5 * SECOND, pause * 1.5);
        next = answer.headers.get("Adw-Next");
        if (!next) { element.removeAttribute("data-tail"); return; }
      } catch {
        pause = Math.min(LONGEST, pause * 2);
      }
      again();
    };
    element.scrollTop = element.scrollHeight;
    step();
  };
  for (const one of document.querySelectorAll("[data-tail]")) tail(one);
})();
