// The server sends a JSON object in each line: the whole cluster first, and then every change.

const silence = 25_000;
const retry = 2_000;

async function read(onLine) {
  const aborter = new AbortController();
  let timer;
  const alive = () => {
    clearTimeout(timer);
    timer = setTimeout(() => aborter.abort(), silence);
  };
  try {
    alive();
    const response = await fetch('api/watch', { signal: aborter.signal, cache: 'no-store' });
    if (!response.ok) throw new Error(await response.text());
    onLine({ reset: true });
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = '';
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      alive();
      const lines = (rest + value).split('\n');
      rest = lines.pop();
      for (const line of lines) onLine(JSON.parse(line));
    }
  } finally {
    clearTimeout(timer);
    aborter.abort();
  }
}

// follow calls onLine for each line, and onLost whenever the connection ends. It connects again until the page closes.
export async function follow(onLine, onLost) {
  for (;;) {
    try {
      await read(onLine);
    } catch (error) {
      console.warn(error);
    }
    onLost();
    await new Promise((resolve) => setTimeout(resolve, retry));
  }
}
