// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"io/fs"
	"net/http"
	"net/http/httptest"
	"path"
	"regexp"
	"strings"
	"testing"
)

func TestGuard_Requests_OnlyTheOwnPagePasses(t *testing.T) {
	const token = "SECRET"
	passed := ""
	guard := Guard(token, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { passed = r.URL.Path }))
	for name, c := range map[string]struct {
		method, path, host string
		header             map[string]string
		code               int
		reaches            string
	}{
		"page":                  {path: "/SECRET/", reaches: "/"},
		"file":                  {path: "/SECRET/main.js", reaches: "/main.js"},
		"by localhost":          {path: "/SECRET/", host: "localhost:8080", reaches: "/"},
		"by a tunnel's port":    {path: "/SECRET/", host: "127.0.0.1:1", reaches: "/"},
		"by IPv6":               {path: "/SECRET/", host: "[::1]:8080", reaches: "/"},
		"own request":           {path: "/SECRET/api", header: map[string]string{"Origin": "http://127.0.0.1:8080", "Sec-Fetch-Site": "same-origin"}, reaches: "/api"},
		"typed address":         {path: "/SECRET/", header: map[string]string{"Sec-Fetch-Site": "none"}, reaches: "/"},
		"link to the page":      {path: "/SECRET/", header: map[string]string{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}, reaches: "/"},
		"HEAD":                  {method: "HEAD", path: "/SECRET/", reaches: "/"},
		"no token":              {path: "/", code: 403},
		"no slash":              {path: "/SECRET", code: 403},
		"wrong token":           {path: "/SECRETS/", code: 403},
		"other case":            {path: "/secret/", code: 403},
		"rebound name":          {path: "/SECRET/", host: "evil.example:8080", code: 403},
		"name with loopback":    {path: "/SECRET/", host: "127.0.0.1.evil.example", code: 403},
		"other address":         {path: "/SECRET/", host: "10.0.0.1:8080", code: 403},
		"no host":               {path: "/SECRET/", host: "-", code: 403},
		"other origin":          {path: "/SECRET/api", header: map[string]string{"Origin": "http://evil.example"}, code: 403},
		"other port's origin":   {path: "/SECRET/api", header: map[string]string{"Origin": "http://127.0.0.1:9"}, code: 403},
		"opaque origin":         {path: "/SECRET/api", header: map[string]string{"Origin": "null"}, code: 403},
		"request of a web site": {path: "/SECRET/api", header: map[string]string{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, code: 403},
		"frame of a web site":   {path: "/SECRET/", header: map[string]string{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}, code: 403},
		"other local server":    {path: "/SECRET/api", header: map[string]string{"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"}, code: 403},
		"write":                 {method: "POST", path: "/SECRET/", code: 405},
		"preflight":             {method: "OPTIONS", path: "/SECRET/", code: 405},
	} {
		t.Run(name, func(t *testing.T) {
			r := httptest.NewRequest(http.MethodGet, c.path, nil)
			if c.method != "" {
				r.Method = c.method
			}
			switch r.Host = c.host; c.host {
			case "":
				r.Host = "127.0.0.1:8080"
			case "-":
				r.Host = ""
			}
			for key, value := range c.header {
				r.Header.Set(key, value)
			}
			passed = ""
			w := httptest.NewRecorder()
			guard.ServeHTTP(w, r)
			if c.code == 0 {
				c.code = 200
			}
			if w.Code != c.code || passed != c.reaches {
				t.Errorf("code %d and path %q, want %d and %q", w.Code, passed, c.code, c.reaches)
			}
			if strings.Contains(w.Body.String(), token) {
				t.Errorf("the answer has the token: %s", w.Body)
			}
			for key, part := range map[string]string{
				"Content-Security-Policy": "default-src 'none'", "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff",
				"X-Frame-Options": "DENY", "Cache-Control": "no-store", "Cross-Origin-Resource-Policy": "same-origin",
			} {
				if !strings.Contains(w.Header().Get(key), part) {
					t.Errorf("header %s is %q, want %q in it", key, w.Header().Get(key), part)
				}
			}
			if w.Header().Get("Access-Control-Allow-Origin") != "" {
				t.Error("another origin may read the answer")
			}
		})
	}
}

func TestNewToken_Twice_LongAndDifferent(t *testing.T) {
	if a, b := NewToken(), NewToken(); a == b || len(a) < 26 {
		t.Errorf("tokens %q and %q", a, b)
	}
}

// TestAssets_Files_LoadNothingAndParseNoText checks the files for what the policy of the page forbids, and for text that
// becomes HTML.
func TestAssets_Files_LoadNothingAndParseNoText(t *testing.T) {
	forbidden := regexp.MustCompile(`(?i)https?://|innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\b|new Function|setHTML|srcdoc|javascript:|@import|url\(`)
	inline := regexp.MustCompile(`(?i)<script(>|[^>]*[^>]>[^<])|<style|\sstyle=|\son[a-z]+=`)
	count := 0
	err := fs.WalkDir(embedded, "assets", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		count++
		data, err := embedded.ReadFile(name)
		if err != nil {
			return err
		}
		text := strings.ReplaceAll(string(data), "http://www.w3.org/2000/svg", "")
		if found := forbidden.FindString(text); found != "" {
			t.Errorf("%s has %q", name, found)
		}
		if path.Ext(name) == ".html" {
			if found := inline.FindString(text); found != "" {
				t.Errorf("%s has %q", name, found)
			}
		}
		if lines := strings.Count(text, "\n"); lines > 250 {
			t.Errorf("%s has %d lines", name, lines)
		}
		return nil
	})
	if err != nil || count < 10 {
		t.Errorf("%d files: %v", count, err)
	}
}

func get(h http.Handler, path string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, path, nil)
	r.Host = "127.0.0.1:8080"
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestHandler_Files_HaveTypes(t *testing.T) {
	h := NewHandler("T", newTestCluster(), nil, nil)
	for name, want := range map[string]string{
		"": "text/html; charset=utf-8", "main.js": "text/javascript; charset=utf-8", "base.css": "text/css; charset=utf-8", "icon.svg": "image/svg+xml",
	} {
		if w := get(h, "/T/"+name); w.Code != http.StatusOK || w.Header().Get("Content-Type") != want {
			t.Errorf("%q: code %d, type %q, want %q", name, w.Code, w.Header().Get("Content-Type"), want)
		}
	}
	for _, name := range []string{"missing.js", "../guard.go", "api/", "api/secret"} {
		if w := get(h, "/T/"+name); w.Code == http.StatusOK {
			t.Errorf("%q: code %d", name, w.Code)
		}
	}
}
