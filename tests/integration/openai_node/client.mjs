// OpenAI's own JavaScript client against a running kvasird: prints one JSON object of what it saw. Argument: base URL.
import OpenAI from 'openai';

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: 'none', maxRetries: 0 });
const prompt = process.argv[3];
const seen = {};

seen.models = (await client.models.list()).data.map((m) => m.id);
const whole = await client.completions.create({ model: seen.models[0], prompt, max_tokens: 12, temperature: 0 });
seen.text = whole.choices[0].text;
seen.usage = whole.usage;

const stream = await client.completions.create({
  model: seen.models[0], prompt, max_tokens: 12, temperature: 0, stream: true, stream_options: { include_usage: true },
});
seen.streamed = '';
for await (const chunk of stream) {
  seen.streamed += chunk.choices[0]?.text ?? '';
  seen.finish = chunk.choices[0]?.finish_reason ?? seen.finish;
  seen.stream_usage = chunk.usage ?? seen.stream_usage;
}

const messages = [{ role: 'user', content: [{ type: 'text', text: 'Hello ' }, { type: 'text', text: 'there' }] }];
const chat = await client.chat.completions.create({ model: seen.models[0], messages, max_tokens: 8, temperature: 0, logprobs: true, top_logprobs: 2 });
seen.chat = chat.choices[0].message;
seen.chat_logprobs = chat.choices[0].logprobs.content.length;
seen.chat_streamed = '';
for await (const chunk of await client.chat.completions.create({ model: seen.models[0], messages, max_tokens: 8, temperature: 0, stream: true })) {
  seen.chat_streamed += chunk.choices[0]?.delta?.content ?? '';
}

try {
  await client.completions.create({ model: 'no-such-model', prompt });
} catch (e) {
  seen.error = { name: e.constructor.name, status: e.status, code: e.code, param: e.param };
}
console.log(JSON.stringify(seen));
