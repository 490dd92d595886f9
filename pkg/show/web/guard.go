// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"crypto/rand"
	"crypto/subtle"
	"net"
	"net/http"
	"strings"
)

// NewToken returns the secret part of a URL, with at least 128 random bits.
func NewToken() string { return rand.Text() }

// policy allows the page its own files and requests. It forbids frames, and code that makes HTML or scripts from text.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types " +
	"'none'"

// Guard passes requests with the token as the first element of the path to next, without that element. It refuses
// other hosts than this machine, because a web site can give its own name the address of this machine.
func Guard(token string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Cache-Control", "no-store")
		given, rest, ok := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
		switch {
		case !loopback(r.Host):
			http.Error(w, "The page is only for this machine: open it by the address 127.0.0.1 or localhost.",
				http.StatusForbidden)
		case crossSite(r):
			http.Error(w, "Another web site sent this request.", http.StatusForbidden)
		case subtle.ConstantTimeCompare([]byte(given), []byte(token)) != 1 || !ok:
			http.Error(w, "Open the URL that kubectl gpu web printed: it has a secret part.", http.StatusForbidden)
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			h.Set("Allow", "GET, HEAD")
			http.Error(w, "The page is read only.", http.StatusMethodNotAllowed)
		default:
			inner := r.Clone(r.Context())
			inner.URL.Path, inner.URL.RawPath = "/"+rest, ""
			next.ServeHTTP(w, inner)
		}
	})
}

// loopback reports whether a Host header names this machine. The port can be that of a tunnel.
func loopback(host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	ip := net.ParseIP(strings.Trim(name, "[]"))
	return strings.EqualFold(name, "localhost") || ip != nil && ip.IsLoopback()
}

// crossSite reports whether a browser sent the request for another site's page. A link to the page itself is allowed.
func crossSite(r *http.Request) bool {
	if origin := r.Header.Get("Origin"); origin != "" && origin != "http://"+r.Host {
		return true
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "none", "same-origin":
		return false
	}
	return r.Header.Get("Sec-Fetch-Mode") != "navigate" || r.Header.Get("Sec-Fetch-Dest") != "document"
}
