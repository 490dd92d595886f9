// The state of the page in its address: the selected object as a path, and then what differs from a new page, as in
// #gpu/n1/gpu-0000-1b-00-0?tab=claims&search=team-a&colour=use

const defaults = { tab: 'gpus', search: '', colour: 'namespace' };

export function read(hash) {
  const [path, query = ''] = hash.replace(/^#/, '').split('?', 2);
  const out = { kind: '', names: [], ...defaults };
  try {
    [out.kind, ...out.names] = path.split('/').map(decodeURIComponent);
  } catch { /* It is not an address of this page. */ }
  for (const [name, value] of new URLSearchParams(query)) {
    if (Object.hasOwn(defaults, name)) out[name] = value;
  }
  return out;
}

export function write(state) {
  const query = new URLSearchParams(Object.keys(defaults).filter((name) => state[name] !== defaults[name]).map((name) => [name, state[name]]));
  const path = state.kind === '' ? '' : [state.kind, ...state.names].map(encodeURIComponent).join('/');
  return `#${path}${query.size > 0 ? `?${query}` : ''}`;
}
