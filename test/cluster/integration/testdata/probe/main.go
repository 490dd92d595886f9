// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Command probe is what the integration test runs in a pod: it looks around and says what it sees.
package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

const account = "/var/run/secrets/kubernetes.io/serviceaccount/"

func main() {
	if len(os.Args) > 1 && os.Args[1] == "env" {
		fmt.Println(os.Getenv(os.Args[2]))
		return
	}
	if err := reachAPIServer(); err != nil {
		fmt.Println("API server:", err)
	} else {
		fmt.Println("API server: reached")
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	<-signals
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
