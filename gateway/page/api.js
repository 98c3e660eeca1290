// Calls of the gateway's API. The token is kept by this tab alone and sent as a header: there are no cookies.

const KEY = "sandman.token";
const LIMIT_MS = 15_000;

/** What the gateway refused, or that it could not be asked (`status` 0). */
export class Problem extends Error {
  constructor(status, body, retryAfter) {
    super(body.detail || `status ${status}`);
    this.status = status;
    this.reason = body.reason || "internal";
    this.retryAfter = Number(body.retry_after ?? retryAfter ?? 0);
  }
}

export const token = {
  get: () => sessionStorage.getItem(KEY),
  /** False: no token is like that. */
  set(text) {
    const trimmed = text.trim();
    if (!/^[\x21-\x7e]+$/.test(trimmed)) return false;
    sessionStorage.setItem(KEY, trimmed);
    return true;
  },
  forget: () => sessionStorage.removeItem(KEY),
};

export async function call(method, path, body) {
  const headers = { authorization: `Bearer ${token.get() ?? ""}` };
  if (body !== undefined) headers["content-type"] = "application/json";
  let answer;
  try {
    answer = await fetch(path, {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
      signal: AbortSignal.timeout(LIMIT_MS),
    });
  } catch (error) {
    throw new Problem(0, { reason: "unreachable", detail: String(error.message ?? error) });
  }
  if (answer.status === 204) return null;
  const told = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Problem(answer.status, told, answer.headers.get("retry-after"));
  return told;
}

/** What a person can do about it. */
export function advice(problem) {
  switch (problem.reason) {
    case "unauthenticated":
      return "The token is not known here, or not any more: it was revoked, or has expired. Ask who runs this gateway for another, and enter it.";
    case "forbidden":
      return `This token may not do that: ${problem.message}. Log in with an API key of your tenant.`;
    case "throttled":
      return `Too many tokens that nobody knows came from your address. Try again in ${Math.ceil(problem.retryAfter) || 60} s.`;
    case "unreachable":
      return problem.status === 0
        ? "The gateway does not answer. It is asked again every few seconds; in local mode, look whether “sandman serve --local” still runs."
        : `${problem.message}. It is asked again every few seconds.`;
    default:
      return `${problem.message} (${problem.reason})`;
  }
}
