// Three turns about a picture by OpenAI's Node client: node three_turns.js URL < {"picture": "data:…", "questions": […]}
// Prints what was said, whole and streamed, as JSON. The messages of answers are appended as they come.
const { OpenAI } = require("openai");

async function ask(client, picture, questions, answer) {
  const shown = { type: "image_url", image_url: { url: picture, detail: "auto" } };
  const messages = [];
  const said = [];
  for (const [number, text] of questions.entries()) {
    const content = number ? text : [shown, { type: "text", text }];
    messages.push({ role: "user", content });
    const message = await answer(client, { model: "tiny-vlm", messages, seed: 1 });
    messages.push(message);
    said.push(message.content);
  }
  return said;
}

async function whole(client, options) {
  return (await client.chat.completions.create(options)).choices[0].message;
}

async function streamed(client, options) {
  return client.chat.completions.stream(options).finalMessage();
}

async function main() {
  const { picture, questions } = JSON.parse(require("fs").readFileSync(0, "utf8"));
  const client = new OpenAI({ baseURL: process.argv[2], apiKey: "unused", maxRetries: 0 });
  const said = {};
  for (const [name, answer] of Object.entries({ whole, streamed })) {
    said[name] = await ask(client, picture, questions, answer);
  }
  console.log(JSON.stringify(said));
}

main();
