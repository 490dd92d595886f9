// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package mpsd_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpu-dra-driver/internal/mpsd"
)

// serve answers on a socket in place of a supervisor.
func serve(t *testing.T, answer http.HandlerFunc) *mpsd.Client {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: answer}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	return mpsd.NewClient(socket)
}

func TestClient_NoSupervisor_ReturnsErrAway(t *testing.T) {
	c := mpsd.NewClient(filepath.Join(t.TempDir(), "none"))
	if _, err := c.List(t.Context(), ""); !errors.Is(err, mpsd.ErrAway) {
		t.Error(err)
	}
	if err := c.Stop(t.Context(), "gpu-0"); !errors.Is(err, mpsd.ErrAway) {
		t.Error(err)
	}
}

func TestEnsure_BadAnswer_ReturnsShortError(t *testing.T) {
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		want   string
	}{
		"refused":  {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no room", http.StatusServiceUnavailable) }, "no room"},
		"nonsense": {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("{")) }, "read the answer"},
		"noise":    {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, strings.Repeat("x", 1<<20), 500) }, "xxx"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := serve(t, c.answer).Ensure(t.Context(), mpsd.Daemon{Name: "gpu-0"})
			if err == nil || !strings.Contains(err.Error(), c.want) || len(err.Error()) > 1200 {
				t.Errorf("%.200v, want %q in it", err, c.want)
			}
		})
	}
}

func TestEnsure_Deadline_SentAsWait(t *testing.T) {
	var asked time.Duration
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		asked, _ = time.ParseDuration(r.URL.Query().Get("wait"))
		_, _ = w.Write([]byte(`{"pid":7}`))
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, err := c.Ensure(ctx, mpsd.Daemon{Name: "gpu-0"})
	if err != nil || s.PID != 7 || asked > time.Minute || asked < 50*time.Second {
		t.Errorf("%+v, %v, wait %s", s, err, asked)
	}
}

func TestValidate_InvalidField_NamesIt(t *testing.T) {
	good := mpsd.Daemon{Name: "gpu-0000-1b-00-0", UUID: "GPU-9be4b2f2-6f10-4bac-9f52-80c33786f624", MemoryLimit: new(uint64(1 << 20)), Threads: 100, Users: "many"}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	for field, change := range map[string]func(*mpsd.Daemon){
		"name": func(d *mpsd.Daemon) { d.Name = "../x" }, "uuid": func(d *mpsd.Daemon) { d.UUID = "GPU-0\nquit" },
		"threads": func(d *mpsd.Daemon) { d.Threads = 101 }, "memoryLimit": func(d *mpsd.Daemon) { d.MemoryLimit = new(uint64(0)) },
		"users": func(d *mpsd.Daemon) { d.Users = "all" },
	} {
		d := good
		change(&d)
		if err := d.Validate(); err == nil || !strings.HasPrefix(err.Error(), field+":") {
			t.Errorf("%s: %v", field, err)
		}
	}
}
