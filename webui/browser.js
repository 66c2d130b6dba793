// Client side of the page: it keeps conversations in the browser, a key each, so that open tabs do not
// overwrite each other's, draws their list, and listens to the keyboard. It asks no host for anything.
window.chats = (() => {
  const PREFIX = "lmdeploy-chat:";
  const OPEN = "lmdeploy-chat-open"; // of this tab
  const ICONS = {
    rename: "M4 20h4L19 9l-4-4L4 16zM13.5 6.5l4 4",
    delete: "M5 7h14M10 11v6M14 11v6M7 7l1 13h8l1-13M9 7V4h6v3",
  };
  const SURE_MS = 3000;
  let list = null; // where the list is drawn
  let report = () => {}; // the server, of what was chosen
  let wanted = null;
  const seen = {}; // when what this tab has of a chat was written

  const read = (id) => {
    try {
      return JSON.parse(localStorage.getItem(PREFIX + id));
    } catch {
      return null;
    }
  };
  const write = (chat) => {
    try {
      localStorage.setItem(PREFIX + chat.id, JSON.stringify(chat));
      list?.classList.remove("full");
    } catch {
      list?.classList.add("full"); // said by the style sheet
    }
    draw();
  };
  const all = () =>
    Object.keys(localStorage)
      .filter((key) => key.startsWith(PREFIX))
      .map((key) => read(key.slice(PREFIX.length)))
      .filter((chat) => chat?.id)
      .sort((one, other) => (other.changed ?? 0) - (one.changed ?? 0));

  const element = (name, attributes = {}, ...children) => {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (typeof value === "function") made.addEventListener(key, value);
      else made.setAttribute(key, value);
    }
    made.append(...children);
    return made;
  };
  const icon = (kind, label, onClick) => {
    const button = element("button", { class: kind, title: label, "aria-label": label, click: onClick });
    button.innerHTML = `<svg viewBox="0 0 24 24" aria-hidden="true"><path d="${ICONS[kind]}"/></svg>`;
    return button;
  };

  const open = (id) => {
    wanted = read(id);
    if (!wanted) return draw();
    sessionStorage.setItem(OPEN, id);
    draw();
    report("select");
    if (innerWidth < 768) fold("#conversations", false);
  };
  const rename = (chat, entry) => {
    const field = element("input", { type: "text", maxlength: "60", "aria-label": "Name of the chat" });
    field.value = chat.name || chat.title;
    let isOver = false;
    const done = (keep) => {
      if (isOver) return;
      isOver = true;
      const name = field.value.trim();
      field.remove(); // nothing is drawn again over a field that is written in
      if (keep && name) write({ ...read(chat.id), name });
      else draw();
    };
    field.addEventListener("keydown", (event) => {
      event.stopPropagation();
      if (event.key === "Enter") done(true);
      if (event.key === "Escape") done(false);
    });
    field.addEventListener("blur", () => done(true));
    entry.replaceChildren(field);
    field.focus();
    field.select();
  };
  const remove = (chat, button) => {
    if (!button.classList.contains("sure")) {
      button.classList.add("sure");
      button.textContent = "Delete?";
      setTimeout(draw, SURE_MS);
      return;
    }
    localStorage.removeItem(PREFIX + chat.id);
    if (sessionStorage.getItem(OPEN) === chat.id) {
      leave();
      report("clear");
    }
    draw();
  };

  const draw = () => {
    if (!list || rows.contains(document.activeElement?.closest("input"))) return;
    const current = sessionStorage.getItem(OPEN);
    const entries = all().filter(isFound).map((chat) => {
      const entry = element("li", chat.id === current ? { class: "current" } : {});
      const title = element("button", { class: "title", click: () => open(chat.id) }, chat.name || chat.title);
      title.title = chat.name || chat.title;
      if (chat.id === current) title.setAttribute("aria-current", "true");
      const bin = icon("delete", "Delete", () => remove(chat, bin));
      entry.append(title, icon("rename", "Rename", () => rename(chat, entry)), bin);
      return entry;
    });
    search.hidden = !all().length;
    rows.replaceChildren(...entries);
  };
  const search = element("input", {
    type: "search", placeholder: "Search chats", "aria-label": "Search chats", input: () => draw(),
  });
  const rows = element("ul");
  const isFound = (chat) => JSON.stringify([chat.name, chat.turns]).toLowerCase().includes(search.value.toLowerCase());

  const mount = (where, trigger) => {
    list = where;
    list.replaceChildren(search, rows);
    report = trigger;
    draw();
    label("#conversations", "Chats");
    label("#settings", "Settings");
    if (innerWidth >= 1100 && all().length) fold("#conversations", true);
  };
  const label = (sidebar, text) => {
    const button = document.querySelector(`${sidebar} .toggle-button`);
    button?.setAttribute("aria-label", text);
    button?.setAttribute("title", text);
  };
  const fold = (sidebar, shouldBeOpen) => {
    const found = document.querySelector(sidebar);
    if (found && found.classList.contains("open") !== shouldBeOpen) found.querySelector(".toggle-button").click();
  };
  const save = ({ is_shown: isShown, ...chat } = {}) => {
    const kept = read(chat.id);
    if (!chat.turns?.length || !(isShown || kept)) return; // deleted meanwhile
    if (isShown) sessionStorage.setItem(OPEN, chat.id);
    if (isShown && !kept && innerWidth < 768) fold("#conversations", false);
    const changed = (seen[chat.id] = Math.max(Date.now(), (kept?.changed ?? 0) + 1));
    write({ ...chat, name: kept?.name || chat.name || "", changed });
  };
  const leave = () => {
    sessionStorage.removeItem(OPEN);
    draw();
  };
  // The conversation to show: the one chosen in the list, or at first the one that this tab had.
  const chosen = () => {
    const chat = wanted ?? read(sessionStorage.getItem(OPEN));
    wanted = null;
    if (chat) seen[chat.id] = chat.changed;
    return chat;
  };
  const current = () => read(sessionStorage.getItem(OPEN));
  // The shown conversation, if another tab has written it since.
  const newer = () => {
    const chat = current();
    return chat && chat.changed !== seen[chat.id] ? chat : null;
  };
  const download = (file) => {
    if (!file?.text) return;
    const url = URL.createObjectURL(new Blob([file.text], { type: "text/plain" }));
    element("a", { href: url, download: file.name }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10000);
  };

  // Private-use characters of webui/markdown.py become text again, as soon as they are in the page. Two of the marks
  // are boxes outside of code, and those of formulas are gone by then.
  const MARKS = ["$$", "$$", "\\[", "\\]", "\\(", "\\)", "$", "$", "[ ]", "[x]"];
  const OURS = /[\ue000-\ue089]/;
  const plain = (text) =>
    text.replace(new RegExp(OURS, "g"), (mark) => {
      const code = mark.charCodeAt(0) - 0xe000;
      return code < 128 ? String.fromCharCode(code) : MARKS[code - 128];
    });
  const LABELS = ["aria-label", "title", "alt"];
  const reveal = (root) => {
    const nodes = document.createTreeWalker(root, NodeFilter.SHOW_TEXT | NodeFilter.SHOW_ELEMENT);
    const coloured = new Set();
    for (let node = root; node; node = nodes.nextNode()) {
      if (node.nodeType === Node.TEXT_NODE && OURS.test(node.data)) {
        const code = node.parentElement?.closest("pre, code");
        node.data = plain(code ? node.data : node.data.replace(/\ue088/g, "☐").replace(/\ue089/g, "☑"));
        if (code?.className.includes("language-")) coloured.add(code);
      }
      for (const label of node.nodeType === Node.ELEMENT_NODE ? LABELS : [])
        if (OURS.test(node.getAttribute(label))) node.setAttribute(label, plain(node.getAttribute(label)));
      if (node.matches?.('a[href$="%EE%80%BE"]')) {
        node.href = node.href.slice(0, -9); // the mark after <https://host>
        node.textContent = node.textContent.slice(0, -1);
        node.after(">");
      }
      if (node.matches?.("textarea") && OURS.test(node.value)) {
        node.value = plain(node.value);
        node.dispatchEvent(new Event("input", { bubbles: true }));
      }
    }
    for (const code of coloured) window.Prism?.highlightElement(code); // its tags had other characters
  };
  // Folded panels take no focus, and say that they are folded; scrolling regions scroll by keys too.
  const describe = () => {
    const isFolded = (button, isOpen) =>
      button.getAttribute("aria-expanded") === `${isOpen}` || button.setAttribute("aria-expanded", isOpen);
    for (const side of document.querySelectorAll(".sidebar")) {
      const isOpen = side.classList.contains("open");
      side.querySelector(".sidebar-content").inert = !isOpen;
      isFolded(side.querySelector(".toggle-button"), isOpen);
    }
    for (const fold of document.querySelectorAll(".label-wrap")) isFolded(fold, fold.classList.contains("open"));
    for (const thought of document.querySelectorAll("#chat .thought-group > .title")) {
      isFolded(thought, thought.classList.contains("expanded"));
      Object.assign(thought.querySelector("button"), { disabled: true, ariaHidden: "true" }); // the whole title is one
    }
    for (const wide of document.querySelectorAll("#chat :is(pre, table):not([tabindex])")) wide.tabIndex = 0; // scrolls
  };
  // The chat stays at its end while it grows, unless its reader has scrolled up; a new question is always shown.
  const ROUND = 24; // pixels from the end that are at the end
  let [isAtEnd, top, questions] = [true, 0, 0];
  document.addEventListener(
    "scroll",
    ({ target }) => {
      if (!target.matches?.("#chat .bubble-wrap")) return;
      if (target.scrollHeight - target.scrollTop - target.clientHeight < ROUND) isAtEnd = true;
      else if (target.scrollTop < top) isAtEnd = false;
      top = target.scrollTop;
    },
    true,
  );
  const stayAtEnd = () => {
    const chat = document.querySelector("#chat .bubble-wrap");
    if (!chat) return;
    const count = chat.querySelectorAll(".user-row").length;
    isAtEnd ||= count > questions;
    questions = count;
    if (isAtEnd) chat.scrollTop = chat.scrollHeight;
  };
  new MutationObserver((changes) => {
    for (const change of changes) {
      if (change.attributeName === "class" || !change.target.parentElement?.closest("#chat")) continue;
      for (const node of change.type === "childList" ? change.addedNodes : [change.target]) reveal(node);
    }
    describe();
    stayAtEnd();
    requestAnimationFrame(stayAtEnd); // once more, when all of it has its size
  }).observe(document, {
    subtree: true, childList: true, characterData: true, attributes: true, attributeFilter: [...LABELS, "class"],
  });
  document.addEventListener("copy", (event) => {
    if (!OURS.test(event.target.value)) return;
    event.clipboardData.setData("text/plain", plain(event.target.value));
    event.preventDefault();
  });
  if (navigator.clipboard) {
    const write = navigator.clipboard.writeText.bind(navigator.clipboard);
    navigator.clipboard.writeText = (text) => write(plain(text));
  }

  let step = null; // to another response
  document.addEventListener("click", (event) => {
    const button = event.target.closest?.("#chat .place button");
    const turn = button?.className.match(/turn-(\d+)/);
    const by = button?.className.match(/by(-?\d+)/);
    if (!turn || !by) return;
    step = [Number(turn[1]), Number(by[1])];
    report("apply");
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !event.defaultPrevented) document.querySelector("#question .stop-button")?.click();
  });
  // Text that is no number is marked: the server would leave it out.
  document.addEventListener("input", ({ target }) => {
    if (!target.closest("#seed, #thinking-budget")) return;
    const isWrong = !/^\s*\d{0,15}\s*$/.test(target.value);
    target.setAttribute("aria-invalid", isWrong);
    target.title = isWrong ? "A whole number of at most 15 digits, or nothing" : "";
  });
  document.addEventListener("visibilitychange", () => report(document.hidden ? "blur" : "focus"));
  addEventListener("storage", (event) => {
    draw(); // another tab's
    if (event.key !== PREFIX + sessionStorage.getItem(OPEN)) return;
    const [now, before] = [event.newValue, event.oldValue].map((text) => JSON.parse(text)?.turns ?? []);
    const isRunning = now.at(-1)?.responses.at(-1).outcome === "running";
    if (now.length && (now.length !== before.length || !isRunning)) {
      wanted = current();
      report("select");
    }
  });

  return { mount, save, leave, chosen, download, current, newer, step: () => step };
})();
