// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"regexp"
	"strings"
)

// Redacted stands in the place of a secret.
const Redacted = "REDACTED"

// secretName matches names of settings that hold secrets.
var secretName = regexp.MustCompile(`(?i)passw|token|secret|credential|private|(api|access|auth|license)_?-?key`)

// patterns match secrets in text. The first group stays.
var patterns = []*regexp.Regexp{
	regexp.MustCompile(`()-----BEGIN [A-Z ]*PRIVATE KEY-----(?s:.*?)(?:-----END [A-Z ]*PRIVATE KEY-----|\z)`),
	regexp.MustCompile(`()\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*`), // A JSON web token.
	regexp.MustCompile(`(?i)(\b(?:bearer|basic)\s+)[\w.~+/=-]{8,}`),
	regexp.MustCompile(`([a-z][a-z0-9+.-]*://)[^\s/@:]+:[^\s/@]+@`),
	regexp.MustCompile(`(?i)((?:passw(?:or)?d|token|secret|(?:api|access|auth|license)[_-]?key)\w{0,20}["']?\s*[=:]\s*["']?)[^\s"',;&}]{4,}`),
}

// RedactText replaces secrets in text: keys, tokens, passwords, and credentials in addresses.
func RedactText(text []byte) []byte {
	for _, p := range patterns {
		text = p.ReplaceAll(text, []byte("${1}"+Redacted))
	}
	return text
}

// RedactObject replaces secrets in an API object and removes its bulk: managed fields, and copies of the object in
// annotations. The parameters of other drivers are replaced too, because their meaning is unknown. It changes the object.
func RedactObject(object map[string]any, driver string) {
	if metadata, ok := object["metadata"].(map[string]any); ok {
		delete(metadata, "managedFields")
		if annotations, ok := metadata["annotations"].(map[string]any); ok {
			delete(annotations, "kubectl.kubernetes.io/last-applied-configuration")
		}
	}
	walk(object, driver)
}

func walk(value any, driver string) {
	switch v := value.(type) {
	case map[string]any:
		name, named := v["name"].(string)
		if _, ok := v["value"].(string); ok && named && secretName.MatchString(name) {
			v["value"] = Redacted // An environment variable.
		}
		if of, ok := v["driver"].(string); ok && of != driver && v["parameters"] != nil {
			v["parameters"] = Redacted
		}
		for key, child := range v {
			if text, ok := child.(string); ok {
				v[key] = string(RedactText([]byte(text)))
				continue
			}
			walk(child, driver)
		}
	case []any:
		for i, child := range v {
			if text, ok := child.(string); ok {
				v[i] = argument(string(RedactText([]byte(text))))
				continue
			}
			walk(child, driver)
		}
	}
}

// argument redacts the value of a flag whose name suggests a secret.
func argument(text string) string {
	if flag, _, ok := strings.Cut(text, "="); ok && strings.HasPrefix(flag, "-") && secretName.MatchString(flag) {
		return flag + "=" + Redacted
	}
	return text
}
