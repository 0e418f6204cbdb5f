// What the page does by itself: copies links and lines, switches between day and night, colours runs,
// plays speech while it is made, and tells screen readers what has been made. Loaded once, works by delegation.
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
  const reel = () => document.querySelector(`.sound[data-sound="${playing}"]`);
  const player = () => document.querySelector(".player");
  const made = () => Boolean(reel()?.closest("[data-made]"));
  const address = (key) => {
    const root = (window.gradio_config?.root || location.pathname).replace(/\/$/, "");
    return `${root}/sound/${key}.wav`;
  };
  const load = (key, at, go) => {
    playing = key;
    whole = made();
    audio.src = address(key);
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
  const show = () => {
    const box = player();
    if (!box) return;
    const button = box.querySelector("[data-play]");
    const seek = box.querySelector(".seek");
    const on = Boolean(playing) && !audio.paused && !audio.ended;
    button.disabled = !playing;
    button.classList.toggle("on", on);
    button.setAttribute("aria-label", on ? "Pause" : "Play");
    seek.disabled = !playing || !made();
    seek.max = length() || 1;
    if (document.activeElement !== seek || on) seek.value = audio.currentTime;
    seek.style.setProperty("--done", `${(100 * audio.currentTime) / (length() || 1)}%`);
    seek.setAttribute("aria-valuetext", `${audio.currentTime.toFixed(1)} of ${length().toFixed(1)} seconds`);
    write(box.querySelector(".clock"), `${clock(audio.currentTime)} / ${clock(length())}${length() < 60 ? " s" : ""}`);
    const strip = reel();
    if (strip) {
      const share = Math.min(1, audio.currentTime / Number(strip.dataset.length));
      strip.style.setProperty("--at", share);
      strip.classList.toggle("heard", audio.currentTime > 0);
      if (on && strip.scrollWidth > strip.clientWidth) {
        strip.scrollLeft = share * strip.scrollWidth - strip.clientWidth / 2;
      }
    }
  };
  const frame = () => { show(); if (!audio.paused && !audio.ended) requestAnimationFrame(frame); };
  const seekTo = (at) => {
    if (!playing || !made()) return;
    if (!whole) load(playing, at, !audio.paused);
    else audio.currentTime = at;
    show();
  };
  audio.addEventListener("play", frame);
  for (const name of ["pause", "ended", "seeked", "loadedmetadata"]) audio.addEventListener(name, show);
  audio.addEventListener("error", () => {  // a player that wants to know the length first: give it all when there is
    if (!playing || whole) return;
    const key = playing;
    const retry = setInterval(() => {
      if (playing !== key) clearInterval(retry);
      else if (made()) { clearInterval(retry); load(key, 0, true); }
    }, 200);
  });

  // --- stopping ---------------------------------------------------------------------------------------------------
  const halted = new Set();  // stages whose run was stopped; what was on its way to them still arrives
  const halt = (mark) => {
    mark.removeAttribute("data-going");
    for (const part of mark.querySelectorAll("[data-partial]")) part.hidden = false;
    for (const live of mark.querySelectorAll("[data-live]")) live.dataset.made = "";
    mark.insertAdjacentHTML("beforeend", '<div class="notes"><p>Stopped.</p></div>');
  };
  const stopped = () => {
    for (const mark of document.querySelectorAll("[data-going]")) {
      halted.add(mark.closest('[id$="-stage"]')?.id);
      halt(mark);
    }
    say("Stopped.");
  };

  // --- what the server sends --------------------------------------------------------------------------------------
  const look = () => {
    for (const mark of document.querySelectorAll("[data-going]")) {
      if (halted.has(mark.closest('[id$="-stage"]')?.id)) halt(mark);
    }
    for (const strip of document.querySelectorAll(".sound[data-sound]")) {
      const key = strip.dataset.sound;
      if (key && key !== playing && strip.closest("[data-live]")) load(key, 0, true);
    }
    const told = [...document.querySelectorAll("[data-say]")].filter((mark) => !mark.dataset.told);
    for (const mark of told) { mark.dataset.told = "1"; say(mark.dataset.say); }
    show();
  };
  new MutationObserver(look).observe(page, { childList: true, subtree: true });

  // --- what people do ---------------------------------------------------------------------------------------------
  document.addEventListener("click", (event) => {
    const at = (selector) => event.target.closest?.(selector);
    const line = at("[data-copy]"), link = at("[data-copy-link]"), play = at("[data-play]"), strip = at(".spectrum");
    const go = at('[id$="-go"], .chip');
    if (go) halted.clear();
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
    } else if (play && playing) {
      if (!audio.paused && !audio.ended) audio.pause();
      else if (!whole && made()) load(playing, audio.ended ? 0 : audio.currentTime, true);
      else audio.play();
    } else if (strip && strip.closest(`.sound[data-sound="${playing}"]`)) {
      const box = strip.getBoundingClientRect();
      seekTo(((event.clientX - box.left) / box.width) * Number(reel().dataset.length));
    }
  });
  document.addEventListener("keydown", (event) => { if (event.key === "Enter") halted.clear(); }, true);
  document.addEventListener("input", (event) => {
    if (event.target.matches?.(".seek")) seekTo(Number(event.target.value));
  });

  window.polydraft = { stopped, remember, remembered };
  const begin = () => { document.body.append(voice, audio); daylight(); look(); };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", begin);
  else begin();
})();
