// What the page does by itself: copies links and lines, switches between day and night, colours runs,
// plays recordings, and speech while it is made, and tells screen readers what has been made. Loaded once, works by
// delegation; record.js goes on from window.polydraft.
(() => {
  const page = document.documentElement;

  // --- telling screen readers -------------------------------------------------------------------------------------
  const voice = document.createElement("div");
  voice.className = "unseen";
  voice.setAttribute("role", "status");
  voice.setAttribute("aria-live", "polite");
  const write = (element, text) => { if (element.textContent !== text) element.textContent = text; };  // no idle changes
  const say = (text) => write(voice, text);

  // --- day and night ----------------------------------------------------------------------------------------------
  const wanted = () => {
    try { return localStorage.getItem("polydraft-daylight"); } catch { return null; }
  };
  const night = () => document.body.classList.contains("dark");
  const shine = (dark) => document.body.classList.toggle("dark", dark);
  const dusk = window.matchMedia("(prefers-color-scheme: dark)");
  const daylight = () => shine(wanted() ? wanted() === "dark" : dusk.matches);
  dusk.addEventListener("change", daylight);

  // --- staying as it was over a reload --------------------------------------------------------------------------------
  const MEMORY = "polydraft-inputs";  // of this browser tab: which tab of the page is open, and what its controls say
  const stored = () => {
    try { return JSON.parse(sessionStorage.getItem(MEMORY)) ?? {}; } catch { return {}; }
  };
  const store = (values) => {
    try { sessionStorage.setItem(MEMORY, JSON.stringify({ ...stored(), ...values })); } catch { /* not kept */ }
  };
  const before = stored();  // read before Gradio tells its first values
  const remembered = () => {
    const again = performance.getEntriesByType("navigation")[0]?.type !== "navigate";
    const linked = new URLSearchParams(location.search).has("tab");
    return again || !linked ? JSON.stringify(before) : "";
  };
  const remember = (names, values) => store(Object.fromEntries(names.map((name, at) => [name, values[at]])));

  // --- copying ----------------------------------------------------------------------------------------------------
  const copy = async (text) => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {  // no clipboard outside https and localhost
      const area = document.createElement("textarea");
      area.value = text;
      area.style.position = "fixed";
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
  };
  const copied = (button) => {
    const label = button.dataset.label ?? (button.dataset.label = button.textContent);
    button.textContent = "Copied";
    button.classList.add("ok");
    say(`${label.replace("Copy ", "")} copied`);
    setTimeout(() => { button.textContent = label; button.classList.remove("ok"); }, 1600);
  };

  // --- the player -------------------------------------------------------------------------------------------------
  const audio = new Audio();
  audio.preload = "auto";
  audio.className = "unseen";
  audio.setAttribute("aria-hidden", "true");
  let playing = "";  // key of the sound that the player has
  let whole = false;  // whether it has all of it, so that it can seek
  const unplayable = new Set();  // keys of recordings that this browser cannot decode
  const root = () => (window.gradio_config?.root || location.pathname).replace(/\/$/, "");
  const reel = () => [...document.querySelectorAll(".sound[data-sound]")].find((strip) => strip.dataset.sound === playing);
  const reelBeside = (element) => element.closest(".stage")?.querySelector(".sound[data-sound]");
  // speech is whole once it is made; a recording always is
  const made = (strip = reel()) => Boolean(strip?.dataset.source || strip?.closest("[data-made]"));
  const load = (strip, at, go) => {
    playing = strip.dataset.sound;
    whole = made(strip);
    audio.src = `${root()}/${strip.dataset.source || `sound/${playing}.wav`}`;
    audio.load();
    if (at) audio.currentTime = at;
    if (go) audio.play().catch(() => show());
  };
  const length = () => {
    if (whole && Number.isFinite(audio.duration)) return audio.duration;
    return Number(reel()?.dataset.length || 0);
  };
  const clock = (seconds) => seconds < 60 ? seconds.toFixed(1)
    : `${Math.floor(seconds / 60)}:${String(Math.floor(seconds % 60)).padStart(2, "0")}`;
  const showIn = (box) => {
    const button = box.querySelector("[data-play]");
    const seek = box.querySelector(".seek");
    const strip = reelBeside(box);
    const key = strip?.dataset.sound;
    const mine = Boolean(key) && key === playing;
    const on = mine && !audio.paused && !audio.ended;
    const at = mine ? audio.currentTime : 0;
    const end = mine ? length() : Number(strip?.dataset.length || 0);
    button.disabled = !key || unplayable.has(key);
    button.classList.toggle("on", on);
    button.setAttribute("aria-label", on ? "Pause" : "Play");
    seek.disabled = button.disabled || !made(strip);
    seek.max = end || 1;
    if (document.activeElement !== seek || on) seek.value = at;
    seek.style.setProperty("--done", `${(100 * at) / (end || 1)}%`);
    seek.setAttribute("aria-valuetext", `${at.toFixed(1)} of ${end.toFixed(1)} seconds`);
    write(box.querySelector(".clock"), `${clock(at)} / ${clock(end)}${end < 60 ? " s" : ""}`);
    if (!mine) return;
    const share = Math.min(1, at / Number(strip.dataset.length));
    strip.style.setProperty("--at", share);
    strip.classList.toggle("heard", at > 0);
    if (on && strip.scrollWidth > strip.clientWidth) {
      strip.scrollLeft = share * strip.scrollWidth - strip.clientWidth / 2;
    }
  };
  const show = () => { for (const box of document.querySelectorAll(".player")) showIn(box); };
  const frame = () => { show(); if (!audio.paused && !audio.ended) requestAnimationFrame(frame); };
  const seekTo = (strip, at, go = !audio.paused) => {
    if (!made(strip) || unplayable.has(strip.dataset.sound)) return;
    if (strip.dataset.sound !== playing || !whole) load(strip, at, go);
    else {
      audio.currentTime = at;
      if (go && audio.paused) audio.play().catch(() => show());
    }
    show();
  };
  audio.addEventListener("play", frame);
  for (const name of ["pause", "ended", "seeked", "loadedmetadata"]) audio.addEventListener(name, show);
  audio.addEventListener("error", () => {
    if (!playing) return;
    if (reel()?.dataset.source) {
      unplayable.add(playing);
      playing = "";
      say("This browser cannot play the recording.");
      show();
      return;
    }
    if (whole) return;
    const key = playing;  // a player that wants to know the length first: give it all when there is
    const retry = setInterval(() => {
      if (playing !== key) clearInterval(retry);
      else if (made()) { clearInterval(retry); load(reel(), 0, true); }
    }, 200);
  });

  // --- stopping ---------------------------------------------------------------------------------------------------
  const onStop = [];  // functions that end what runs in the browser alone
  const halted = new Set();  // stages whose run was stopped; what was on its way to them still arrives
  const halt = (mark) => {
    mark.removeAttribute("data-going");
    for (const part of mark.querySelectorAll("[data-partial]")) part.hidden = false;
    for (const live of mark.querySelectorAll("[data-live]")) live.dataset.made = "";
    mark.insertAdjacentHTML("beforeend", '<div class="notes"><p>Stopped.</p></div>');
  };
  const stopped = () => {
    for (const stop of onStop) stop();
    for (const mark of document.querySelectorAll("[data-going]")) {
      halted.add(mark.closest('[id$="-stage"]')?.id);
      halt(mark);
    }
    say("Stopped.");
  };

  // --- following what is written down -----------------------------------------------------------------------------
  const followed = new WeakSet();  // waves and transcripts that are scrolled to what is new
  const follow = (part) => {
    if (part.closest("[data-going]")) {
      followed.add(part);
      part.scrollTop = part.scrollHeight;
      part.scrollLeft = Number(part.dataset.front || 0) * part.scrollWidth - 0.7 * part.clientWidth;
    } else if (followed.delete(part)) part.scrollTo(0, 0);
  };

  // --- what the server sends --------------------------------------------------------------------------------------
  const look = () => {
    for (const mark of document.querySelectorAll("[data-going]")) {
      if (halted.has(mark.closest('[id$="-stage"]')?.id)) halt(mark);
    }
    for (const strip of document.querySelectorAll(".sound[data-sound]")) {
      const key = strip.dataset.sound;
      if (key && key !== playing && strip.closest("[data-live]")) load(strip, 0, true);
    }
    for (const part of document.querySelectorAll(".recording, .transcript")) follow(part);
    const told = [...document.querySelectorAll("[data-say]")].filter((mark) => !mark.dataset.told);
    for (const mark of told) { mark.dataset.told = "1"; say(mark.dataset.say); }
    show();
  };
  new MutationObserver(look).observe(page, { childList: true, subtree: true });

  // --- what people do ---------------------------------------------------------------------------------------------
  document.addEventListener("click", (event) => {
    const at = (selector) => event.target.closest?.(selector);
    const line = at("[data-copy]"), link = at("[data-copy-link]"), play = at("[data-play]");
    const strip = at(".spectrum, .wave")?.closest(".sound[data-sound]"), from = at("[data-seek]");
    const go = at('[id$="-go"], .chip');
    if (go) restarted();
    if (go && innerWidth <= 760) {  // what was asked for appears below the controls
      go.closest(".desk")?.querySelector(".stage")?.scrollIntoView({ behavior: "smooth", block: "start" });
    }
    const tab = at('[role="tab"]')?.getAttribute("aria-controls")?.match(/^tab-(\w+)$/);
    if (tab) store({ tab: tab[1] });
    const unfold = at("[data-unfold]");
    if (unfold) {
      const open = unfold.closest("tr").classList.toggle("open");
      unfold.setAttribute("aria-expanded", open);
    }
    if (line) copy(line.dataset.copy).then(() => copied(line));
    else if (link) copy(location.origin + location.pathname + link.dataset.copyLink).then(() => copied(link));
    else if (at("[data-daylight]")) {
      shine(!night());
      try { localStorage.setItem("polydraft-daylight", night() ? "dark" : "light"); } catch { /* not kept */ }
    } else if (play) {
      const beside = reelBeside(play);
      if (beside.dataset.sound !== playing) load(beside, 0, true);
      else if (!audio.paused && !audio.ended) audio.pause();
      else if (!whole && made()) load(beside, audio.ended ? 0 : audio.currentTime, true);
      else audio.play();
    } else if (from && reelBeside(from)) seekTo(reelBeside(from), Number(from.dataset.seek), true);
    else if (strip?.dataset.sound) {
      const box = at(".spectrum, .wave").getBoundingClientRect();
      seekTo(strip, ((event.clientX - box.left) / box.width) * Number(strip.dataset.length));
    }
  });
  document.addEventListener("keydown", (event) => { if (event.key === "Enter") halted.clear(); }, true);
  document.addEventListener("input", (event) => {
    if (event.target.matches?.(".seek")) seekTo(reelBeside(event.target), Number(event.target.value));
  });

  const restarted = () => halted.clear();
  window.polydraft = { stopped, remember, remembered, stored, say, write, clock, root, onStop, restarted };
  const begin = () => { document.body.append(voice, audio); daylight(); look(); };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", begin);
  else begin();
})();
