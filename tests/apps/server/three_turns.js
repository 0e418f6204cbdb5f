// Three turns about an image with OpenAI's Node client: node three_turns.js URL < {"picture": "data:…", "questions": […]}
// Prints the answers, whole and streamed, as JSON. Messages of answers are appended unchanged.
const { OpenAI } = require("openai");

async function ask(client, picture, questions, answer) {
  const imagePart = { type: "image_url", image_url: { url: picture, detail: "auto" } };
  const messages = [];
  const answers = [];
  for (const [number, text] of questions.entries()) {
    const content = number ? text : [imagePart, { type: "text", text }];
    messages.push({ role: "user", content });
    const message = await answer(client, { model: "tiny-vlm", messages, seed: 1 });
    messages.push(message);
    answers.push(message.content);
  }
  return answers;
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
  const answers = {};
  for (const [name, answer] of Object.entries({ whole, streamed })) {
    answers[name] = await ask(client, picture, questions, answer);
  }
  console.log(JSON.stringify(answers));
}

main();
