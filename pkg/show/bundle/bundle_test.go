// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package bundle_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"

	"gpu-dra-driver/pkg/show/bundle"
)

func files(t *testing.T, archive []byte) (names []string, contents map[string]string) {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	contents = map[string]string{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return names, contents
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
		contents[h.Name] = string(text)
	}
}

func TestArchive_LimitAndNames_EqualBytes(t *testing.T) {
	write := func() []byte {
		var out bytes.Buffer
		a := bundle.New(&out, time.Unix(1e9, 0), 20)
		a.Add("a.txt", []byte("token=abcdef"))
		a.Add("large.txt", make([]byte, 100))
		a.Add("../../etc/./passwd", []byte("x"))
		a.Missing("Events: you may not list them")
		a.Missing("Events: you may not list them")
		if n, missing, err := a.Close(); err != nil || n != 3 || missing != 2 {
			t.Errorf("%d files, %d missing, %v", n, missing, err)
		}
		return out.Bytes()
	}
	names, contents := files(t, write())
	if diff := cmp.Diff([]string{"gpu-bundle/a.txt", "gpu-bundle/etc/passwd", "gpu-bundle/missing.txt"}, names); diff != "" {
		t.Error(diff)
	}
	if got := contents["gpu-bundle/a.txt"]; got != "token=REDACTED" {
		t.Errorf("a.txt is %q", got)
	}
	for _, text := range []string{"large.txt: it has 100 bytes", "you may not list them"} {
		if strings.Count(contents["gpu-bundle/missing.txt"], text) != 1 {
			t.Errorf("missing.txt lacks %q: %q", text, contents["gpu-bundle/missing.txt"])
		}
	}
	if !bytes.Equal(write(), write()) {
		t.Error("two archives of the same files differ")
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

func TestArchive_DiskFull_ReturnsError(t *testing.T) {
	a := bundle.New(full{}, time.Unix(0, 0), 1<<20)
	a.Add("a.txt", bytes.Repeat([]byte("x"), 1000))
	if _, _, err := a.Close(); err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("error %v", err)
	}
}

// secret is in all forms below. It looks like a name, so that only its place shows what it is.
const secret = "hunter2hunter2"

// forms are texts with a secret, as they occur in logs, Events and settings.
var forms = map[string]string{
	"key":                           "-----BEGIN RSA PRIVATE KEY-----\n" + secret + "\n-----END RSA PRIVATE KEY-----\nnext",
	"key without an end":            "-----BEGIN PRIVATE KEY-----\n" + secret,
	"key of PGP":                    "-----BEGIN PGP PRIVATE KEY BLOCK-----\n" + secret + "\n-----END PGP PRIVATE KEY BLOCK-----",
	"key in base64":                 "LS0tLS1CRUdJTiBFQyBQUklWQVRFIEtFWS0tLS0tCk1I" + secret,
	"bearer":                        "Authorization: Bearer " + secret,
	"basic":                         "authorization: basic " + secret,
	"header of another scheme":      "Authorization: Token " + secret,
	"header with a key":             "X-Api-Key: " + secret,
	"header of NGC":                 `"X-Nvidia-Token": ["` + secret + `"]`,
	"cookie":                        "Cookie: theme=dark; session=" + secret,
	"set-cookie":                    "Set-Cookie: sid=" + secret + "; Path=/",
	"JSON web token":                "jwt eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJl." + secret + " end",
	"password":                      "password=" + secret,
	"password after a colon":        "password: " + secret,
	"short password":                "passwd=hunter2hunter2",
	"password with blanks":          `password="correct ` + secret + ` horse"`,
	"password in single quotes":     `password='correct ` + secret + ` horse'`,
	"JSON":                          `{"password": "` + secret + `", "a": 1}`,
	"JSON in JSON":                  `{"config":"{\"clientSecret\":\"` + secret + `\"}"}`,
	"YAML":                          "clientSecret: " + secret,
	"YAML with a block":             "clientSecret: |-\n  first\n  " + secret + "\nnext: 1",
	"flag":                          "exec: prog --auth-token=" + secret,
	"flag and value":                "exec: prog --auth-token " + secret + " -v 4",
	"variable":                      "AWS_SECRET_ACCESS_KEY=" + secret,
	"passphrase":                    "passphrase: " + secret,
	"pre-shared key":                "psk=" + secret,
	"pwd":                           "Server=db;Uid=sa;Pwd=" + secret + ";",
	"storage account":               "AccountName=a;AccountKey=" + secret + ";EndpointSuffix=core.windows.net",
	"connection string":             "connectionString=" + secret,
	"password of a data source":     "app:" + secret + "@tcp(db.example.com:3306)/metrics",
	"auth of a registry":            `{"auths":{"nvcr.io":{"auth":"` + secret + `"}}}`,
	"URL with a password":           "https://user:" + secret + "@proxy.example.com:8080/",
	"URL with a token as user":      "https://" + secret + "@github.com/org/repo.git",
	"URL with an empty user":        "redis://:" + secret + "@cache:6379/0",
	"URL in capitals":               "HTTPS://user:" + secret + "@proxy.example.com/",
	"URL with a slash in a secret":  "https://user:pa/" + secret + "@proxy.example.com/",
	"URL with an at in a secret":    "https://user:p@" + secret + "@proxy.example.com/",
	"URL with a signed query":       "https://bucket.s3.amazonaws.com/a?X-Amz-Date=1&X-Amz-Signature=" + secret,
	"URL with a SAS":                "https://a.blob.core.windows.net/c?sv=2024&sig=" + secret + "%3D",
	"URL with any query":            "https://hooks.example.com/x?k=" + secret,
	"URL with a fragment":           "http://127.0.0.1:1234/#" + secret,
	"URL of a Slack hook":           "https://hooks.slack.com/services/T000/B000/" + secret,
	"token of GitHub":               "ghp_abcdefghijklmnop" + secret,
	"token of GitLab":               "glpat-abcdefg" + secret,
	"key of NVIDIA":                 "nvapi-abcdefghijklmnop_" + secret,
	"key of AWS":                    "id AKIAABCDEFGHIJKLMNOP and then " + "token=" + secret,
	"token of Vault":                "hvs.CAESIJabcdefghijkl" + secret,
	"token of Slack":                "xoxb-123456789012-" + secret,
	"bootstrap token of a cluster":  "kubeadm join --token abcdef.0123" + "hunter2hunter2"[:7] + "56789" + " password=" + secret,
	"credential with spaces around": "api_key = " + secret,
	"short names":                   "PGPASS=" + secret + " DB_PW=" + secret + " smtp_pass: " + secret,
	"flag and value in quotes":      `exec: prog --password "correct ` + secret + `" -v 4`,
	"flag and value as YAML items":  "args:\n- --password\n- " + secret + "\n- -v=4",
	"flag and value, quoted items":  "args:\n  - \"--db-password\"\n  - \"correct " + secret + "\"\n",
	"flag and value as JSON items":  `"args": ["--password", "` + secret + `", "-v=4"]`,
	"list in a line":                "tokens: [first, " + secret + "]",
	"list in JSON":                  `{"tokens": ["first", "` + secret + `"]}`,
}

// settings are the forms in which a password of any characters can stand; %s is its place.
var settings = []string{
	"password=%s", "password: %s", "DB_PASS=%s -v 4", "exec: prog --auth-token=%s", "exec: prog --auth-token %s -v 4", "X-Api-Key: %s",
	`password="%s"`, `password='%s'`, `{"password": "%s", "a": 1}`, `{"config":"{\"clientSecret\":\"%s\"}"}`,
	"- --password\n- %s\n", `["--password", "%s"]`,
}

// TestRedactText_PunctuationInAPassword_NothingIsLeft has each sign of a keyboard in a password, once or twice, as its place writes it.
func TestRedactText_PunctuationInAPassword_NothingIsLeft(t *testing.T) {
	for sign := '!'; sign <= '~'; sign++ {
		for _, form := range settings {
			one := string(sign)
			switch {
			case strings.Contains(form, `\"%s`) && strings.Contains(`"\`, one):
				continue // Three backslashes and more do not occur.
			case strings.Contains(form, `"%s`) && strings.Contains(`"\`, one):
				one = `\` + one
			case strings.Contains(form, `'%s`) && one == "'":
				one = "''"
			case !strings.Contains(form, `"%s`) && !strings.Contains(form, `'%s`) && strings.Contains("\"'\\", one):
				continue // A shell does not read it as a part of the word.
			}
			in := fmt.Sprintf(form, "a"+one+secret+one+one+secret)
			if got := string(bundle.RedactText([]byte(in))); strings.Contains(got, secret) {
				t.Errorf("%q becomes %q", in, got)
			}
		}
	}
}

// TestRedactObject_NumberAfterAFlag_IsThePassword has a value that would stay after another flag.
func TestRedactObject_NumberAfterAFlag_IsThePassword(t *testing.T) {
	object := map[string]any{"args": []any{"--password", "12345678", "--port", "8080"}}
	bundle.RedactObject(object, "gpu.nvidia.com")
	if diff := cmp.Diff(map[string]any{"args": []any{"--password", bundle.Redacted, "--port", "8080"}}, object); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestRedactText_Forms_LoseTheSecret(t *testing.T) {
	for name, in := range forms {
		got := string(bundle.RedactText([]byte(in)))
		if strings.Contains(got, secret) || !strings.Contains(got, bundle.Redacted) {
			t.Errorf("%s: %q becomes %q", name, in, got)
		}
		if again := string(bundle.RedactText([]byte(got))); again != got {
			t.Errorf("%s: a second pass changes %q into %q", name, got, again)
		}
	}
}

// TestRedact_PathOfReviews_IsNotKept has the path of reviews under budgets in an Event, a log, the webhook's configuration and its
// annotation.
func TestRedact_PathOfReviews_IsNotKept(t *testing.T) {
	path := "/budget/" + strings.Repeat("0a1b2c3d", 6)
	event := `failed calling webhook "budget.gpu.nvidia.com": failed to call webhook: Post "https://gpu-dra-driver-webhook.gpu-dra-driver.svc:443` + path + `?timeout=5s": EOF`
	config := map[string]any{
		"metadata": map[string]any{"annotations": map[string]any{"gpu.nvidia.com/newest-path": path}},
		"webhooks": []any{map[string]any{"clientConfig": map[string]any{"service": map[string]any{"path": path}}}},
	}
	bundle.RedactObject(config, "gpu.nvidia.com")
	for _, got := range []string{string(bundle.RedactText([]byte(event))), fmt.Sprint(config)} {
		if strings.Contains(got, path) || !strings.Contains(got, "/budget/"+bundle.Redacted) {
			t.Error(got)
		}
	}
}

func TestRedactText_Diagnosis_Stays(t *testing.T) {
	for _, text := range []string{
		"GPU 0000:1b:00.0 of claim team-a/train-0: XID 79",
		"GET https://10.96.0.1:443/api/v1/nodes?fieldSelector=metadata.name%3Dn1&limit=500&resourceVersion=0&watch=true: 200",
		"image registry.example.com/gpu-dra-driver/controller:0.1.0@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
		"https://registry.example.com/v2/gpu@sha256/manifests",
		`MountVolume.SetUp failed for volume "cert" : secret "webhook-cert" not found`,
		"disaster: no",
		"serviceAccountToken:\n  audience: api\n  expirationSeconds: 3600",
		"the token names no node; use a service account token bound to a pod",
		"nodes \"n1\" is forbidden: User \"system:serviceaccount:gpu:plugin\" cannot list resource \"nodes\"",
		"caBundle: LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCk1JSUM=",
		"n1/gpu-0000-1b-00-0-mig-1g-10gb-4: memory-slice-4: 1, monitoring@example: no",
	} {
		if got := string(bundle.RedactText([]byte(text))); got != text {
			t.Errorf("%q becomes %q", text, got)
		}
	}
}

// TestRedactObject_FormsInAnyPlace_LoseTheSecret puts each form into each place of an object, and the bare secret into the places
// where only the place shows it.
func TestRedactObject_FormsInAnyPlace_LoseTheSecret(t *testing.T) {
	list := func(all ...any) []any { return all }
	type m = map[string]any
	bare := map[string]func(string) m{
		"variable of another name":  func(s string) m { return m{"env": list(m{"name": "FAVOURITE_COLOUR", "value": s})} },
		"header of a probe":         func(s string) m { return m{"httpHeaders": list(m{"name": "X-Probe", "value": s})} },
		"annotation of another":     func(s string) m { return m{"metadata": m{"annotations": m{"example.com/login": s}}} },
		"annotation without domain": func(s string) m { return m{"metadata": m{"annotations": m{"login": s}}} },
		"annotation of a template": func(s string) m {
			return m{"spec": m{"template": m{"metadata": m{"annotations": m{"vault.hashicorp.com/agent": s}}}}}
		},
		"copy of the object": func(s string) m {
			return m{"metadata": m{"annotations": m{"kubectl.kubernetes.io/last-applied-configuration": s}}}
		},
		"flag":             func(s string) m { return m{"args": list("--colour="+s, "-v=4")} },
		"flag and value":   func(s string) m { return m{"args": list("--colour", s)} },
		"words of a shell": func(s string) m { return m{"command": list("/bin/sh", "-c", "login "+s)} },
		"parameters of another": func(s string) m {
			return m{"config": list(m{"opaque": m{"driver": "nic.example.com", "parameters": m{"pair": s}}})}
		},
		"data of another": func(s string) m {
			return m{"status": m{"devices": list(m{"driver": "nic.example.com", "pool": "n1", "device": "eth0", "data": m{"pair": s},
				"conditions": list(m{"type": "Ready", "message": s}), "networkData": m{"interfaceName": s}})}}
		},
		"key of a map":       func(s string) m { return m{"data": m{"password": s}} },
		"attributes of CSI":  func(s string) m { return m{"csi": m{"driver": "csi.example.com", "volumeAttributes": m{"pair": s}}} },
		"options of a mount": func(s string) m { return m{"flexVolume": m{"driver": "x/y", "options": m{"pair": s}}} },
	}
	text := map[string]func(string) m{
		"message of an Event": func(s string) m { return m{"message": s} },
		"file of a ConfigMap": func(s string) m { return m{"data": m{"config.yaml": s}} },
		"known variable":      func(s string) m { return m{"env": list(m{"name": "NODE_NAME", "value": s})} },
		"known annotation":    func(s string) m { return m{"metadata": m{"annotations": m{"gpu.nvidia.com/note": s}}} },
		"own parameters": func(s string) m {
			return m{"config": list(m{"opaque": m{"driver": "gpu.nvidia.com", "parameters": m{"kind": s}}})}
		},
		"webhook": func(s string) m { return m{"webhooks": list(m{"clientConfig": m{"url": s}})} },
	}
	check := func(place, form string, object m) {
		t.Helper()
		bundle.RedactObject(object, "gpu.nvidia.com")
		if got := fmt.Sprint(object); strings.Contains(got, secret) {
			t.Errorf("%s, %s: %s", place, form, got)
		}
	}
	for place, at := range bare {
		check(place, "bare", at(secret))
	}
	for form, s := range forms {
		for _, places := range []map[string]func(string) m{bare, text} {
			for place, at := range places {
				check(place, form, at(s))
			}
		}
	}
}

func TestRedactObject_Diagnosis_Stays(t *testing.T) {
	object := map[string]any{
		"metadata": map[string]any{"name": "p", "managedFields": []any{"x"}, "labels": map[string]any{"app": "p"}, "annotations": map[string]any{
			"kubectl.kubernetes.io/last-applied-configuration": "{}", "cordon.gpu.nvidia.com/gpu-0000-1b-00-0": "NoSchedule", "node.alpha.kubernetes.io/ttl": "0",
		}},
		"env": []any{
			map[string]any{"name": "NODE_NAME", "value": "n1"},
			map[string]any{"name": "POD_UID", "valueFrom": map[string]any{"fieldRef": map[string]any{"fieldPath": "metadata.uid"}}},
		},
		"command": []any{"/dra-controller"},
		"args":    []any{"-v=4", "--timeout=10s", "--dir=/var/lib/x"},
		"volumes": []any{map[string]any{"name": "cert", "secret": map[string]any{"secretName": "webhook-cert"}}},
		"config":  []any{map[string]any{"driver": "gpu.nvidia.com", "parameters": map[string]any{"kind": "GpuConfig"}}},
		"devices": []any{
			map[string]any{"driver": "gpu.nvidia.com", "device": "gpu-0", "conditions": []any{map[string]any{"message": "XID 79"}}},
			map[string]any{"driver": "nic.example.com", "pool": "n1", "device": "eth0", "request": "r"},
		},
		"tolerations": []any{map[string]any{"key": "a", "value": "b"}},
	}
	want := runtime.DeepCopyJSON(object)
	delete(want["metadata"].(map[string]any), "managedFields")
	delete(want["metadata"].(map[string]any)["annotations"].(map[string]any), "kubectl.kubernetes.io/last-applied-configuration")
	bundle.RedactObject(object, "gpu.nvidia.com")
	if diff := cmp.Diff(want, object); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func FuzzRedactText(f *testing.F) {
	f.Add("token: abcdef")
	f.Fuzz(func(t *testing.T, text string) {
		// The first pass of a text leaves no private key.
		if got := string(bundle.RedactText([]byte(text))); strings.Contains(got, "BEGIN PRIVATE KEY-----") {
			t.Errorf("%q becomes %q", text, got)
		}
	})
}
