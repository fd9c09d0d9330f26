// Talks to the server: one POST, answered by server-sent events.

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

function headers(key) {
  const made = { "content-type": "application/json" };
  if (key) made.authorization = `Bearer ${key}`;
  return made;
}

async function failure(response) {
  let message = `The server answered ${response.status}.`;
  try {
    message = (await response.json()).error.message;
  } catch { /* no error object: keep the status */ }
  return new ApiError(response.status, message);
}

/** /server_info, or an ApiError. */
export async function serverInfo(key) {
  const response = await fetch("/server_info", { headers: headers(key) });
  if (!response.ok) throw await failure(response);
  return response.json();
}

/** Events of one playground run, in order. */
export async function* rounds(body, key, signal) {
  const response = await fetch("/playground/stream", {
    method: "POST", headers: headers(key), body: JSON.stringify(body), signal,
  });
  if (!response.ok) throw await failure(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      if (part === "data: [DONE]") return;
      const event = JSON.parse(part.slice(6));
      if (event.error) throw new ApiError(500, event.error.message);
      yield event;
    }
  }
}
