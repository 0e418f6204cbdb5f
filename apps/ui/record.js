// Recording with the microphone: captions while it goes on, and a file for the tab at its end.
(() => {
  const { stored, say, write, clock, root, onStop, restarted } = window.polydraft;
  const RATE = 16000;  // Hz, where the browser lets us choose
  const LONGEST = 20 * 60;  // seconds
  const PIECE = 1;  // seconds of sound that captions wait for at least
  const TAP = `registerProcessor("tap", class extends AudioWorkletProcessor {
    process([input]) { if (input[0]) this.port.postMessage(input[0].slice()); return true; }
  })`;
  const DENIED = {
    NotAllowedError: "the browser keeps the microphone from this page; allow it beside the address, and record again.",
    NotFoundError: "there is no microphone; connect one, or drop a file.",
  };
  let recording = null;  // the one under way
  const joined = (parts) => {
    const all = new Int16Array(parts.reduce((sum, part) => sum + part.length, 0));
    parts.reduce((at, part) => { all.set(part, at); return at + part.length; }, 0);
    return all;
  };
  const wav = (samples, rate) => {
    const head = new DataView(new ArrayBuffer(44));
    const text = (at, letters) => { for (let i = 0; i < 4; i++) head.setUint8(at + i, letters.charCodeAt(i)); };
    text(0, "RIFF"); head.setUint32(4, 36 + samples.byteLength, true); text(8, "WAVE"); text(12, "fmt ");
    head.setUint32(16, 16, true); head.setUint16(20, 1, true); head.setUint16(22, 1, true);
    head.setUint32(24, rate, true); head.setUint32(28, 2 * rate, true); head.setUint16(32, 2, true);
    head.setUint16(34, 16, true); text(36, "data"); head.setUint32(40, samples.byteLength, true);
    return new Blob([head, samples], { type: "audio/wav" });
  };
  const send = async (path, body, headers = {}) => {
    const answer = await fetch(`${root()}/${path}`, { method: "POST", body, headers });
    if (!answer.ok) throw new Error(await answer.text());
    return answer.json();
  };
  const upload = async (file, name) => {
    const form = new FormData();
    form.append("files", file, name);
    const [path] = await send("gradio_api/upload", form);
    return {
      path, url: `${root()}/gradio_api/file=${path}`, orig_name: name, size: file.size, mime_type: file.type,
      meta: { _type: "gradio.FileData" },
    };
  };
  const element = (name, kind, text = "") => {
    const made = document.createElement(name);
    made.className = kind;
    made.textContent = text;
    return made;
  };
  const shownIn = (tab, ...content) => {  // in place of what the stage shows
    const shown = document.querySelector(`#${tab}-stage .shown`);
    if (!shown) return;
    shown.replaceChildren(...content);
    while (shown.nextSibling) shown.nextSibling.remove();
  };
  const failed = (tab, sentence) => {
    const box = element("div", "failure");
    box.setAttribute("role", "alert");
    box.append(element("strong", "", "That did not work."), element("p", "", sentence[0].toUpperCase() + sentence.slice(1)));
    shownIn(tab, box);
  };

  class Recording {
    constructor(button) {
      this.button = button;
      this.tab = button.dataset.record;
      this.parts = [];
      this.unsent = [];
      this.samples = 0;
      this.caption = element("p", "answer captions");
      this.final = element("span", "final");
      this.tentative = element("span", "tentative");
      this.note = element("p", "notes");
      this.caption.append(this.final, this.tentative);
      this.counts = { passes: 0, tokens: 0 };
    }

    async start() {
      if (!navigator.mediaDevices) throw new Error("browsers record on pages that this machine or https serves, and on no others.");
      this.stream = await navigator.mediaDevices.getUserMedia({ audio: { channelCount: 1 } });
      try {  // some browsers connect no microphone to a context of another rate
        this.context = new AudioContext({ sampleRate: RATE });
        this.source = this.context.createMediaStreamSource(this.stream);
      } catch {
        this.context = new AudioContext();
        this.source = this.context.createMediaStreamSource(this.stream);
      }
      const address = URL.createObjectURL(new Blob([TAP], { type: "text/javascript" }));
      await this.context.audioWorklet.addModule(address);
      URL.revokeObjectURL(address);
      this.tap = new AudioWorkletNode(this.context, "tap");
      this.tap.port.onmessage = ({ data }) => this.hear(data);
      this.source.connect(this.tap);
      this.button.classList.add("on");
      shownIn(this.tab, this.caption, this.note);
      write(this.note, "Speak; words appear here. What may still change is grey.");
      say("Recording.");
      this.captions = this.follow();
    }

    get seconds() { return this.samples / this.context.sampleRate; }

    hear(data) {
      if (this.ended) return;  // what was on its way
      const part = Int16Array.from(data, (value) => Math.max(-1, Math.min(1, value)) * 32767);
      this.parts.push(part);
      this.unsent.push(part);
      this.samples += part.length;
      const level = data.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
      this.level = Math.max(level, 0.93 * (this.level ?? 0));
      this.button.parentElement.querySelector(".meter span").style.width = `${100 * this.level ** 0.5}%`;
      write(this.button.querySelector(".label"), `Stop recording · ${clock(Math.floor(this.seconds)).replace(".0", " s")}`);
      if (this.seconds > LONGEST) this.finish();
    }

    async follow() {  // captions, as long as they are to be had
      const now = stored();
      const setting = (name) => now[`${this.tab}.${name}`];
      const language = setting("language");
      const options = {
        model: setting("model"), language: language === "auto" ? null : language, task: setting("task") ?? "transcribe",
        method: setting("method") === "auto" ? null : setting("method"), rate: this.context.sampleRate,
      };
      try {
        const { key } = await send("live", JSON.stringify(options), { "content-type": "application/json" });
        while (!this.ended || this.unsent.length) {
          const waiting = this.unsent.reduce((sum, part) => sum + part.length, 0);
          if (!this.ended && waiting < PIECE * this.context.sampleRate) {
            await new Promise((resolve) => setTimeout(resolve, 100));
          } else this.show(await send(`live/${key}`, joined(this.unsent.splice(0))));
        }
        this.show(await send(`live/${key}/end`));
      } catch (error) {
        write(this.note, `No captions: ${error.message}`);
      }
    }

    show({ final, tentative, passes, tokens }) {
      this.final.append(final);
      write(this.tentative, tentative);
      this.counts.passes += passes;
      this.counts.tokens += tokens;
      if (this.counts.passes) {
        write(this.note, `${this.counts.tokens} tokens in ${this.counts.passes} passes, drafted from the captions before; `
          + "what may still change is grey.");
      }
    }

    close() {
      this.ended = true;
      recording = null;
      for (const track of this.stream?.getTracks() ?? []) track.stop();
      this.context?.close();
      this.button.classList.remove("on");
      write(this.button.querySelector(".label"), "Record");
      this.button.parentElement.querySelector(".meter span").style.width = "0";
    }

    async finish() {  // the recording becomes the tab's sound, and is transcribed as a whole
      if (this.ended) return;
      const rate = this.context.sampleRate;
      this.close();
      restarted();
      try {
        const file = await upload(wav(joined(this.parts), rate), "recording.wav");
        window.polydraft.recorded = () => file;
        document.querySelector(`#${this.tab}-recorded`).click();
      } catch (error) {
        failed(this.tab, error.message);
      }
    }
  }
  const record = async (button) => {
    if (recording) { recording.finish(); return; }
    recording = new Recording(button);
    try {
      await recording.start();
    } catch (error) {
      recording.close();
      failed(button.dataset.record, DENIED[error.name] ?? error.message);
    }
  };
  onStop.push(() => recording?.close());
  document.addEventListener("click", (event) => {
    const button = event.target.closest?.("[data-record]");
    if (button) record(button);
  });
})();
