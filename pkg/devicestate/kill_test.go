// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestate_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/host/hosttest"
	"gpu-dra-driver/pkg/devicestate/devicestatetest"
	"gpu-dra-driver/pkg/record"
)

// victimDir is set in the process that TestPrepare_ProcessKilled_ReleasesLocks starts and kills.
const victimDir = "DEVICESTATE_VICTIM_DIR"

// victim prepares claim a and stops before the effect that the parent named, until it is killed.
func victim(t *testing.T, dir string) {
	e := devicestatetest.Attach(t, dir)
	label := host.Label(os.Getenv(victimDir + "_AT"))
	g := hosttest.NewGate(label)
	p, err := e.StartWith(g.Do)
	e.Must(err)
	e.SteppedClaim("a", "0")
	go func() {
		<-g.Reached
		fmt.Println("holding")
	}()
	_, err = p.Prepare(context.Background(), e.Claims["a"])
	t.Fatal("not killed:", err)
}

// TestPrepare_ProcessKilled_ReleasesLocks has two real processes at work on one GPU and kills the one that has the locks.
func TestPrepare_ProcessKilled_ReleasesLocks(t *testing.T) {
	if dir := os.Getenv(victimDir); dir != "" {
		victim(t, dir)
		return
	}
	for _, label := range []host.Label{record.LabelIntent, "test.apply", "spec.write", record.LabelCommit} {
		t.Run(string(label), func(t *testing.T) {
			e := devicestatetest.New(t)
			cmd := exec.Command(os.Args[0], "-test.run=^TestPrepare_ProcessKilled_ReleasesLocks$")
			cmd.Env = append(os.Environ(), victimDir+"="+e.Dir, victimDir+"_AT="+string(label))
			out, err := cmd.StdoutPipe()
			e.Must(err)
			e.Must(cmd.Start())
			lines := bufio.NewScanner(out)
			for lines.Scan() && lines.Text() != "holding" {
			}
			p := e.Start()
			e.Claim("b", "0")
			waiting := make(chan error, 1)
			go func() { _, err := p.Prepare(context.Background(), e.Claims["b"]); waiting <- err }()
			// It may be in the queue already or not yet; it must not get through before the kill.
			_, early := p.Prepare(briefly(t), e.Claims["b"])
			killed := cmd.Process.Kill()
			_ = cmd.Wait()
			e.Must(killed)
			if early == nil {
				t.Error("two processes were at work on one GPU")
			}
			err = <-waiting
			findings, recoverErr := p.Recover(context.Background())
			e.Must(recoverErr)
			left := 1
			if label == record.LabelIntent {
				left = 0 // It was killed before it created any file.
			}
			if len(findings) != left || left > 0 && (findings[0].Err != nil || findings[0].Claim.UID != "a") {
				t.Errorf("Recover of what the dead left: %+v", findings)
			}
			if err != nil { // An intent of the dead stands in the way until it is undone.
				e.Prepare(p, "b")
			}
			e.CheckClean(p, "b")
		})
	}
}
