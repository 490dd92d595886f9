// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Command probe is what the integration test runs in a pod: it looks around and says what it sees.
package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

const account = "/var/run/secrets/kubernetes.io/serviceaccount/"

func main() {
	if len(os.Args) > 2 {
		if err := once(os.Args[1], os.Args[2]); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	if err := reachAPIServer(); err != nil {
		fmt.Println("API server:", err)
	} else {
		fmt.Println("API server: reached")
	}
	if len(os.Args) > 1 && os.Args[1] == "serve" {
		go serve()
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	<-signals
}

// once does one thing: say what a variable holds, make an empty file, or get a URL.
func once(what, argument string) error {
	switch what {
	case "env":
		fmt.Println(os.Getenv(argument))
		return nil
	case "touch":
		return os.WriteFile(argument, nil, 0o600)
	case "get":
		client := http.Client{Timeout: 10 * time.Second}
		response, err := client.Get(argument)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		_, err = io.Copy(os.Stdout, response.Body)
		return err
	}
	return fmt.Errorf("probe cannot %s", what)
}

// serve answers every request with the names of the files in the directories of the node that the pod has.
func serve() {
	err := http.ListenAndServe(":8080", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for _, dir := range []string{"/cdi", "/driver"} {
			entries, err := os.ReadDir(dir)
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			for _, e := range entries {
				fmt.Fprintf(w, "%s/%s\n", dir, e.Name())
			}
		}
	}))
	fmt.Println("serve:", err)
}

// reachAPIServer asks, as client-go would in a cluster, who the pod's service account is.
func reachAPIServer() error {
	token, err := os.ReadFile(account + "token")
	if err != nil {
		return err
	}
	ca, err := os.ReadFile(account + "ca.crt")
	if err != nil {
		return err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}}
	url := fmt.Sprintf("https://%s:%s/api", os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT"))
	request, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+string(token))
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, response.Status)
	}
	return nil
}
