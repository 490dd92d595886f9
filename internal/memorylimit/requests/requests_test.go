// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package requests

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/memorylimit"
)

func request() memorylimit.Request {
	return memorylimit.Request{
		Claim: "ns/c", ClaimUID: "u-1", Device: "gpu-0000-1b-00-0", Address: "0000:1b:00.0", UUID: "GPU-0", Bytes: 4 << 30, Cgroup: "/pods/one",
	}
}

// files returns the plugin's side, and a directory of cgroups that has the request's.
func files(t *testing.T) (f *Files, cgroups string) {
	t.Helper()
	f, cgroups = New(host.New(host.Options{}), filepath.Join(t.TempDir(), "limits")), t.TempDir()
	if err := errors.Join(f.Make(), os.MkdirAll(filepath.Join(cgroups, "pods/one"), 0o755)); err != nil {
		t.Fatal(err)
	}
	return f, cgroups
}

func list(t *testing.T, f *Files, cgroups string, want ...memorylimit.Request) {
	t.Helper()
	got, err := f.List(cgroups)
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

func TestAsk_Answered_ReturnsTheAnswer(t *testing.T) {
	for _, refused := range []error{nil, errors.New("the GPU is lost")} {
		f, cgroups := files(t)
		if err := f.Answer(request(), refused); err != nil { // As of an earlier start of the same container.
			t.Fatal(err)
		}
		answered, err := Ask(t.Context(), f.host, f.Dir(), request())
		if !answered || fmt.Sprint(err) != fmt.Sprint(refused) {
			t.Errorf("%v: %v, %v", refused, answered, err)
		}
		list(t, f, cgroups, request())
	}
}

// TestAsk_AnswerUnreadable_IsAnErrorWithItsText: a container does not start without a limit.
func TestAsk_AnswerUnreadable_IsAnErrorWithItsText(t *testing.T) {
	for _, text := range []string{"", "{", "[]", `{"error":5}`, "set"} {
		f, _ := files(t)
		path := filepath.Join(f.Dir(), name(request())+suffixAnswer)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		answered, err := Ask(t.Context(), f.host, f.Dir(), request())
		if !answered || err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%q in %s is not readable", text, path)) {
			t.Errorf("%q: %v, %v", text, answered, err)
		}
	}
	f, _ := files(t)
	if err := os.Mkdir(filepath.Join(f.Dir(), name(request())+suffixAnswer), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Ask(t.Context(), f.host, f.Dir(), request()); err == nil {
		t.Error("an answer that cannot be read is one")
	}
}

// TestList_Unreadable_IsNoAbsentRequest lets the disk fail under one of two requests.
func TestList_Unreadable_IsNoAbsentRequest(t *testing.T) {
	bad := ""
	f, cgroups := files(t)
	f.host = host.New(host.Options{ReadFile: func(path string) ([]byte, error) {
		if filepath.Base(path) == bad {
			return nil, unix.EIO
		}
		return os.ReadFile(path)
	}})
	other := request()
	other.Device = "gpu-0000-43-00-0"
	for _, r := range []memorylimit.Request{request(), other} {
		if err := f.Answer(r, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := Ask(t.Context(), f.host, f.Dir(), r); err != nil {
			t.Fatal(err)
		}
	}
	bad = name(request()) + suffixRequest
	if asked, err := f.List(cgroups); !errors.Is(err, unix.EIO) || len(asked) != 1 || asked[0] != other {
		t.Errorf("asked %+v, %v", asked, err)
	}
	bad = ""
	if asked, err := f.List(cgroups); err != nil || len(asked) != 2 {
		t.Errorf("afterwards: asked %+v, %v", asked, err)
	}
}

func TestAsk_NobodyAnswers_IsNoErrorAndStays(t *testing.T) {
	f, cgroups := files(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if answered, err := Ask(ctx, f.host, f.Dir(), request()); answered || err != nil {
		t.Errorf("%v, %v", answered, err)
	}
	list(t, f, cgroups, request())
	if err := os.Remove(filepath.Join(cgroups, "pods/one")); err != nil {
		t.Fatal(err)
	}
	list(t, f, cgroups)
	if names, err := os.ReadDir(f.Dir()); err != nil || len(names) > 0 {
		t.Errorf("files of a container that ended: %v, %v", names, err)
	}
}

func TestAsk_Incomplete_IsAnError(t *testing.T) {
	for name, change := range map[string]func(*memorylimit.Request){
		"no GPU": func(r *memorylimit.Request) { r.Address = "" }, "no limit": func(r *memorylimit.Request) { r.Bytes = 0 },
		"no cgroup": func(r *memorylimit.Request) { r.Cgroup = "" }, "all cgroups": func(r *memorylimit.Request) { r.Cgroup = "/" },
		"a cgroup elsewhere": func(r *memorylimit.Request) { r.Cgroup = "/../x" },
	} {
		f, cgroups := files(t)
		r := request()
		change(&r)
		if _, err := Ask(t.Context(), f.host, f.Dir(), r); err == nil {
			t.Error(name)
		}
		list(t, f, cgroups)
	}
	f, _ := files(t)
	if err := os.RemoveAll(f.Dir()); err != nil {
		t.Fatal(err)
	}
	if _, err := Ask(t.Context(), f.host, f.Dir(), request()); err == nil {
		t.Error("asked without a directory")
	}
}

// TestList_OtherFiles_RemovesWhatIsNoRequest keeps only what a hook is still writing.
func TestList_OtherFiles_RemovesWhatIsNoRequest(t *testing.T) {
	f, cgroups := files(t)
	for name, text := range map[string]string{
		"damaged.request": "{", "empty.request": "", "elsewhere.request": `{"device":"d","address":"a","uuid":"u","bytes":1,"cgroup":"/../../etc"}`,
		"alone.answer": "{}", ".new.request.tmp": "{",
	} {
		if err := os.WriteFile(filepath.Join(f.Dir(), name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	list(t, f, cgroups)
	names, err := os.ReadDir(f.Dir())
	if err != nil || len(names) != 1 || names[0].Name() != ".new.request.tmp" {
		t.Errorf("%v, %v", names, err)
	}
}

func TestCgroupOf_State_ReadsTheProcess(t *testing.T) {
	proc := t.TempDir()
	for pid, text := range map[string]string{"7": "0::/pods/one\n", "8": "4:memory:/one\n0::/\n", "9": "4:memory:/one\n1:name=systemd:/x\n"} {
		if err := errors.Join(os.MkdirAll(filepath.Join(proc, pid), 0o755), os.WriteFile(filepath.Join(proc, pid, "cgroup"), []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	for state, want := range map[string]string{
		`{"ociVersion":"1.2.0","id":"c","pid":7}`: "/pods/one <nil>", `{"pid":8}`: "/ <nil>", `{"pid":9}`: " " + ErrNoCgroup.Error(),
		`{"pid":6}`: " the process has ended", `{}`: " the container's state has no process", `{"pid":-1}`: " the container's state has no process",
		`[`: " the container's state has no process",
	} {
		if path, err := CgroupOf(strings.NewReader(state), proc); !strings.HasPrefix(fmt.Sprint(path, " ", err), want) {
			t.Errorf("%s: %s, %v; want %s", state, path, err, want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"claim":"ns/c","device":"d","address":"0000:1b:00.0","uuid":"GPU-0","bytes":1,"cgroup":"/pods/one"}`))
	f.Add([]byte(`{"cgroup":"/a/../../b"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := decode(data)
		if err != nil {
			return
		}
		if full := filepath.Join("/root", r.Cgroup); !strings.HasPrefix(full, "/root/") || r.Bytes == 0 {
			t.Errorf("%+v", r)
		}
	})
}
