// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"bytes"
	"regexp"
	"slices"
	"strings"
)

// Redacted stands in the place of a secret.
const Redacted = "REDACTED"

const secretWords = `passw(?:or)?d|passphrase|pass\b|pwd|pw\b|token|secret|credential|cookie|signature|psk|\bsas|` +
	`connectionstring|(?:api|access|account|auth|encryption|license|private|shared|signing)[_-]?key`

// secretName matches names of settings that hold secrets.
var secretName = regexp.MustCompile(`(?i)` + secretWords + `|private|^auth$`)

// named returns a rule for the value after a name that suggests a secret.
func named(before, after, value string) *regexp.Regexp {
	return regexp.MustCompile(`(?i)(` + before + `(?:` + secretWords + `)` + after + `)(` + value + `)`)
}

// A rule replaces the second group of a match, and keeps the first.
var rules = []*regexp.Regexp{
	regexp.MustCompile(
		`()(-----BEGIN [A-Z ]*PRIVATE KEY[A-Z ]*-----(?s:.*?)(?:-----END [A-Z ]*PRIVATE KEY[A-Z ]*-----|\z))`),
	// The same in base64: BEGIN, and then PRIVATE or the begin of RSA, DSA, EC, OPENSSH, ENCRYPTED or PGP.
	regexp.MustCompile(`()(LS0tLS1CRUdJTi(?:BQUklW|BSU0Eg|BEU0Eg|BFQyB|BPUEVO|BFTkNS|BQR1Ag)[\w+/=-]*)`),
	regexp.MustCompile(`()(\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)`), // A JSON web token.
	regexp.MustCompile(`(/budget/)([0-9a-f]{16,})`),             // The path of reviews under GPU budgets.
	// Headers, to the end of the line or of the quoted text.
	regexp.MustCompile(`(?i)(\b(?:proxy-)?authorization["']?\s*[:=]\s*\[?["']?(?:\w+ )?)([^\s"'\]][^\n"'\]]*)`),
	regexp.MustCompile(`(?i)(\b(?:set-)?cookie["']?\s*[:=]\s*\[?["']?)([^\s"'\]][^\n"'\]]*)`),
	regexp.MustCompile(`(?i)(\b(?:bearer|basic)\s+)([\w.~+/=-]{8,})`),
	// Tokens that their issuers mark.
	regexp.MustCompile(
		`()(\b(?:gh[oprsu]_|github_pat_|glpat-|nvapi-|xox[a-z]-|hv[bsr]\.|sk-|npm_|dckr_pat_|AIza|ya29\.)[\w.-]{10,})`),
	regexp.MustCompile(`()(\b(?:AKIA|ASIA)[A-Z0-9]{16}\b)`),
	regexp.MustCompile(`()(\b[a-z0-9]{6}\.[a-z0-9]{16}\b)`), // A bootstrap token.
	// Settings in YAML with a block: all indented lines.
	named(``, `\w{0,20}["']?:[ \t]*[|>][-+0-9]*\n[ \t]+`, `\S.*(?:\n[ \t]+\S.*)*`),
	// Settings: a list in a line, the value in quotes, also in escaped ones, or to the end of the word.
	named(``, `\w{0,20}\\?["']?\s*[=:][ \t]*`, `\[[^\]\n]+\]`),
	named(``, `\w{0,20}\\?["']?\s*[=:][ \t]*\\"`, `(?:[^"\\]|\\[^"])+`),
	named(``, `\w{0,20}["']?\s*[=:][ \t]*"`, `(?:[^"\\]|\\.)+`),
	named(``, `\w{0,20}["']?\s*[=:][ \t]*'`, `(?:[^']|'')+`),
	named(``, `\w{0,20}\\?["']?\s*[=:][ \t]*`, `(?:[^\s"'\\\[]|\\[^\s"'])(?:[^\s"'\\]|\\[^\s"'])*`),
	regexp.MustCompile(`("auth\\?"\s*:\s*\\?")([^"\\]+)`),
	// Flags with the value in the next word, the next item of a YAML list or of a JSON list.
	named(`--?[\w-]*`, `[\w-]*\s+`, `"[^"\n]*"|'[^'\n]*'|[^\s"'-][^\s"']*`),
	named(`-\s+["']?--?[\w-]*`, `[\w-]*["']?\s*\n\s*-\s+`, `\S.*`),
	named(`"--?[\w-]*`, `[\w-]*",\s*"`, `(?:[^"\\]|\\.)+`),
}

var (
	urls = regexp.MustCompile(`(?i)\b[a-z][a-z0-9+.-]*://[^\s"'<>` + "`" + `\\]+`)
	// dataSource is user:password@host without a scheme.
	dataSource = regexp.MustCompile(`(^|[\s"'=])([\w.+-]+:)([^\s:@"'/]+)(@[\w(\[][\w.()\[\]-]*:?)`)
)

// RedactText replaces secrets in text: keys, tokens, headers, settings whose names suggest a secret, and in addresses
// the user, the fragment and each parameter but those of Kubernetes' own lists.
func RedactText(text []byte) []byte {
	text = urls.ReplaceAllFunc(text, func(u []byte) []byte { return []byte(redactURL(string(u))) })
	text = dataSource.ReplaceAllFunc(text, func(all []byte) []byte {
		m := dataSource.FindSubmatch(all)
		if bytes.HasPrefix(m[4], []byte("@sha256:")) { // An image with a tag.
			return all
		}
		return slices.Concat(m[1], m[2], []byte(Redacted), m[4])
	})
	for _, r := range rules {
		text = r.ReplaceAll(text, []byte("${1}"+Redacted))
	}
	return text
}

// listParameters are the parameters of Kubernetes' own requests.
var listParameters = []string{
	"allowWatchBookmarks", "container", "continue", "dryRun", "fieldManager", "fieldSelector", "follow", "force",
	"labelSelector", "limit",
	"limitBytes", "previous", "propagationPolicy", "resourceVersion", "resourceVersionMatch", "sendInitialEvents",
	"tailLines", "timeout",
	"timeoutSeconds", "timestamps", "watch",
}

// hooks are hosts whose paths are secrets.
var hooks = []string{"hooks.slack.com", "discord.com/api/webhooks", "api.telegram.org", "webhook.office.com"}

// redactURL works on the text, because a URL with a secret is often malformed.
func redactURL(u string) string {
	at := strings.Index(u, "://") + len("://")
	scheme, rest := u[:at], u[at:]
	rest, fragment, hasFragment := strings.Cut(rest, "#")
	rest, query, hasQuery := strings.Cut(rest, "?")
	authority, _, _ := strings.Cut(rest, "/")
	_, port, hasPort := strings.Cut(authority, ":")
	// A password can have a slash: then the text before it has no port.
	if i := strings.LastIndex(rest, "@"); i >= 0 &&
		(strings.Contains(authority, "@") || hasPort && strings.Trim(port, "0123456789") != "") {
		if strings.Contains(authority, "@") {
			i = strings.LastIndex(authority, "@")
		}
		rest = Redacted + rest[i:]
	}
	host := rest[strings.LastIndex(rest, "@")+1:]
	if slices.ContainsFunc(hooks, func(h string) bool { return strings.Contains(strings.ToLower(host), h) }) {
		path := strings.Index(rest, "/")
		if path >= 0 {
			rest = rest[:path+1] + Redacted
		}
	}
	out := scheme + rest
	if hasQuery {
		parts := strings.Split(query, "&")
		for i, p := range parts {
			switch name, value, _ := strings.Cut(p, "="); {
			case slices.Contains(listParameters, name):
			case value != "":
				parts[i] = name + "=" + Redacted
			default:
				parts[i] = Redacted
			}
		}
		out += "?" + strings.Join(parts, "&")
	}
	if hasFragment && fragment != "" {
		out += "#" + Redacted
	}
	return out
}

// variables are the environment variables of the chart and of its programs. The values of others are replaced.
var variables = regexp.MustCompile(`^(` +
	`ADOPT_EXTERNAL_MIG|ALLOW_GPU_RESET|AUTO_GROUPS|BOOT_ID_FILE|CDI_ROOT|CERT_SECRET|CLASS_GRACE|` +
	`DENY_UNSATISFIABLE|DEMAND_CONFIGMAP|DEVICE_METADATA|DEV_ROOT|DRIVER_NAME|(CONTAINER_|NVIDIA_)?DRIVER_ROOT|` +
	`EXTENDED_RESOURCE_PREFIX|GODEBUG|GOGC|GOMAXPROCS|GOMEMLIMIT|GPU_CLASS|GPU_PRICES|GPU_RESOURCE_NAME|` +
	`GROUP_CLASSES|HEALTHCHECK_PORT|HEALTH_[A-Z_]+|HTTP_ENDPOINT|KERNEL_LOG|KUBELET_[A-Z_]+|LEASE_NAME|` +
	`MAX_SERVING_NODES|MEMORY_LIMIT|METRICS_[A-Z_]+|MIG_DEVICES|MIG_MODE_IDLE|MODEL_CLASSES|MODEL_CLASS_PREFIX|` +
	`MONITOR_DEVICES|MPS_DIR|MPS_SHM_SIZE|NODE_LABELS|NODE_NAME|NVIDIA_VISIBLE_DEVICES|POD_[A-Z_]+|PPROF_PATH|` +
	`PREEMPTION(_EXEMPT_CLASSES|_EXEMPT_NAMESPACES|_VIOLATE_BUDGETS)?|PROC_ROOT|PROFILE_CLASSES|ROTATE_CERTS|` +
	`SCHEDULER_VERSION|SHARES_ON_DEMAND|SHARING_CONFIG|SYS_ROOT|VERBOSITY|WEBHOOK|` +
	`WEBHOOK_(CLIENT_CA|CONFIGURATION|PORT|SERVICE))$`)

// KeepsVariable reports whether an archive has the value of an environment variable.
func KeepsVariable(name string) bool { return variables.MatchString(name) }

// domains have the annotations whose values an archive keeps.
var domains = []string{"kubernetes.io", "k8s.io", "nvidia.com"}

func keepsAnnotation(key, driver string) bool {
	domain, _, ok := strings.Cut(key, "/")
	return ok && slices.ContainsFunc(append(domains, driver), func(d string) bool {
		return domain == d || strings.HasSuffix(domain, "."+d)
	})
}

// plain matches the values of flags that hold no secret: numbers, durations, switches and files.
var plain = regexp.MustCompile(`^(true|false|[0-9]+(\.[0-9]+)?[a-zA-Z%]{0,2}|/[\w./-]*)$`)

// RedactObject replaces secrets in an API object and removes its bulk: managed fields, and copies of the object in
// annotations. Values whose meaning is unknown are replaced too: those of other environment variables, headers,
// annotations, flags and volumes, and the parameters and data of other drivers. It changes the object.
func RedactObject(object map[string]any, driver string) { redactor(driver).object(object) }

// redactor has the name of the driver.
type redactor string

func (r redactor) object(v map[string]any) {
	delete(v, "managedFields")
	if name, ok := v["name"].(string); ok && !KeepsVariable(name) {
		if _, ok := v["value"].(string); ok {
			v["value"] = Redacted
		}
	}
	if of, ok := v["driver"].(string); ok && of != string(r) {
		for _, key := range []string{"parameters", "data", "conditions", "networkData", "options", "volumeAttributes"} {
			if v[key] != nil {
				v[key] = Redacted
			}
		}
	}
	for key, child := range v {
		switch child := child.(type) {
		case string:
			if v[key] = string(RedactText([]byte(child))); secretName.MatchString(key) && key != "secretName" {
				v[key] = Redacted
			}
		case map[string]any:
			if key == "annotations" {
				r.annotations(child)
			}
			r.object(child)
		case []any:
			r.list(child, key == "args" || key == "command")
		}
	}
}

func (r redactor) annotations(all map[string]any) {
	delete(all, "kubectl.kubernetes.io/last-applied-configuration")
	for key := range all {
		if !keepsAnnotation(key, string(r)) {
			all[key] = Redacted
		}
	}
}

// list redacts the elements of a list. It keeps the names of flags in a command line, and plain values.
func (r redactor) list(all []any, commandLine bool) {
	hides := false
	for i, child := range all {
		switch child := child.(type) {
		case string:
			text := string(RedactText([]byte(child)))
			flag, value, assigned := strings.Cut(text, "=")
			hidden := hides
			hides = !assigned && strings.HasPrefix(flag, "-") && secretName.MatchString(flag)
			switch {
			case !commandLine || !hidden && plain.MatchString(text):
			case !strings.HasPrefix(text, "-"):
				text = Redacted
			case assigned && !plain.MatchString(value):
				text = flag + "=" + Redacted
			}
			all[i] = text
		case map[string]any:
			r.object(child)
		case []any:
			r.list(child, false)
		}
	}
}
