"""The small page at / of the server: a conversation, streamed, without anything from elsewhere."""

from __future__ import annotations

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>morok</title>
<style>
  :root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
  body { max-width: 46rem; margin: 0 auto; padding: 1rem; display: flex; flex-direction: column;
         min-height: 100vh; box-sizing: border-box; }
  #log { flex: 1; }
  .message { white-space: pre-wrap; padding: .5rem .75rem; margin: .5rem 0; border-radius: .5rem; }
  .user { background: color-mix(in srgb, CanvasText 10%, Canvas); }
  .error { color: #c22; }
  form { display: flex; gap: .5rem; position: sticky; bottom: 0; background: Canvas; padding: .5rem 0; }
  textarea { flex: 1; font: inherit; min-height: 3rem; }
  button { font: inherit; }
  #state { font-size: .8rem; opacity: .7; }
</style>
<h1>morok</h1>
<div id="log" role="log" aria-live="polite"></div>
<div id="state"></div>
<form id="form">
  <textarea id="text" aria-label="message" placeholder="Message" required></textarea>
  <button id="send">Send</button>
  <button id="stop" type="button" disabled>Stop</button>
</form>
<script>
  const byId = (id) => document.getElementById(id);
  const messages = [];
  let running = null;
  const show = (kind, text) => {
    const box = document.createElement("div");
    box.className = "message " + kind;
    box.textContent = text;
    byId("log").append(box);
    return box;
  };
  const ask = async () => {
    running = new AbortController();
    byId("send").disabled = true;
    byId("stop").disabled = false;
    const box = show("assistant", "");
    const headers = {"content-type": "application/json"};
    const key = new URLSearchParams(location.hash.slice(1)).get("key");
    if (key) headers.authorization = "Bearer " + key;
    const started = performance.now();
    let count = 0, answer = "", failed = false;
    try {
      const reply = await fetch("v1/chat/completions", {
        method: "POST", headers, signal: running.signal,
        body: JSON.stringify({messages, stream: true}),
      });
      if (!reply.ok) throw new Error((await reply.json()).error.message);
      const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const {value, done} = await reader.read();
        if (done) break;
        const lines = (rest + value).split("\\n\\n");
        rest = lines.pop();
        for (const line of lines) {
          const data = line.replace(/^data: /, "");
          if (data === "[DONE]") continue;
          const found = JSON.parse(data);
          if (found.error) throw new Error(found.error.message);
          answer += found.choices[0]?.delta?.content ?? "";
          count += 1;
          box.textContent = answer;
        }
      }
    } catch (error) {
      if (error.name !== "AbortError") { show("error", error.message); failed = true; }
    }
    const seconds = (performance.now() - started) / 1000;
    byId("state").textContent = count + " tokens, " + (count / seconds).toFixed(1) + " a second";
    if (failed) messages.pop();  // what was not answered would be refused again with every later message
    else messages.push({role: "assistant", content: answer});
    byId("send").disabled = false;
    byId("stop").disabled = true;
  };
  byId("stop").onclick = () => running?.abort();
  byId("form").onsubmit = (event) => {
    event.preventDefault();
    const text = byId("text").value.trim();
    if (!text || byId("send").disabled) return;
    byId("text").value = "";
    messages.push({role: "user", content: text});
    show("user", text);
    ask();
  };
  byId("text").onkeydown = (event) => {
    if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); byId("form").requestSubmit(); }
  };
</script>
"""
