// Ask a server as users of openai's package and of Vercel's `ai` do, and print what came back as JSON:
//     node asks.mjs openai|ai URL MODEL
import OpenAI from "openai";
import { zodFunction, zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { Output, generateObject, generateText, stepCountIs, streamObject, streamText, tool } from "ai";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { z } from "zod";

const QUESTION = "Where does Ada live?";
const HOMES = { Ada: "Oslo", Bruno: "Lima" };
const Home = z.object({ city: z.string() });
const Who = z.object({ name: z.string() });
const where = ({ name }) => HOMES[name];

async function openai(baseURL, model) {
  const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
  const asked = { model, messages: [{ role: "user", content: QUESTION }] };
  const chats = client.chat.completions;
  const tools = [zodFunction({ name: "where", description: "The city of a person.", parameters: Who, function: where })];
  const form = { format: zodTextFormat(Home, "home") };
  return {
    chat: (await chats.create(asked)).choices[0].message.content,
    stream: await chats.stream(asked).finalContent(),
    parse: (await chats.parse({ ...asked, response_format: zodResponseFormat(Home, "home") })).choices[0].message.parsed,
    tool: await chats.runTools({ ...asked, tools }).finalContent(),
    responses: (await client.responses.create({ model, input: QUESTION })).output_text,
    "responses, parsed": (await client.responses.parse({ model, input: QUESTION, text: form })).output_parsed,
  };
}

async function ai(baseURL, model) {
  const made = {};
  const tools = { where: tool({ description: "The city of a person.", inputSchema: Who, execute: where }) };
  const provider = createOpenAI({ baseURL, apiKey: "none" });
  const compatible = createOpenAICompatible({ name: "local", baseURL, apiKey: "none", supportsStructuredOutputs: true });
  for (const [name, asked] of [["openai", provider(model)], ["openai.chat", provider.chat(model)], ["compatible", compatible(model)]]) {
    const told = { model: asked, maxRetries: 0, prompt: QUESTION };
    const streamed = streamText(told);
    let text = "";
    for await (const part of streamed.textStream) text += part;
    const streamedObject = streamObject({ ...told, schema: Home });
    let object;
    for await (const part of streamedObject.partialObjectStream) object = part;
    const called = await generateText({ ...told, tools, stopWhen: stepCountIs(3) });
    const forced = await generateText({ ...told, tools, toolChoice: { type: "tool", toolName: "where" } });
    made[name] = {
      text: (await generateText(told)).text,
      stream: text,
      object: (await generateObject({ ...told, schema: Home })).object,
      "streamed object": [object, await streamedObject.object],
      output: (await generateText({ ...told, output: Output.object({ schema: Home }) })).output,
      tool: [called.steps.length, called.text],
      "forced tool": forced.toolCalls.map((call) => [call.toolName, call.input]),
    };
    // a second question refers to what was said before
    const messages = [{ role: "user", content: QUESTION }, ...called.response.messages, { role: "user", content: QUESTION }];
    made[name]["second question"] = (await generateText({ model: asked, maxRetries: 0, messages })).text;
  }
  return made;
}

const [client, ...words] = process.argv.slice(2);
console.log(JSON.stringify(await { openai, ai }[client](...words)));
