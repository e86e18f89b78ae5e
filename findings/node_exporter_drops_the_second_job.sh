#!/bin/bash
# Guess: two jobs of one host may each write a file for node_exporter's textfile collector; where
# their series have the same labels, the collector says so in a metric.
# Truth: of two equal series it shows one and drops the other, per series, and so also one whose
# help text differs: with two ranks here and four there, ranks 0 and 1 are the first job's and
# ranks 2 and 3 the second's, as if it were one. node_textfile_scrape_error stays 0, both files
# count as read; only the exporter's own log tells.
# Seen with prometheus-node-exporter 1.5.0-1+b6 of Debian 12, as root or not.
set -euo pipefail
work=$(mktemp -d)
exporter=
trap '[ -z "$exporter" ] || kill "$exporter"; rm -rf "$work"' EXIT
cd "$work"
apt-get download -q prometheus-node-exporter=1.5.0-1+b6 > log 2>&1 || { cat log; exit 1; }
dpkg -x prometheus-node-exporter_*.deb package
mkdir files
job() {  # writes $1 with ranks 0 to $2, each with the value $3, and the help text $4
  { echo "# HELP steps_total $4"
    echo "# TYPE steps_total counter"
    for rank in $(seq 0 "$2"); do echo "steps_total{rank=\"$rank\"} $3"; done
  } > "files/$1"
}
expect() {
  echo "$1: $2"
  [ "$2" = "$3" ] || { echo "changed: $1 was $3 and is $2"; exit 1; }
}
scraped() {
  python3 -c "if True:
    import urllib.request
    print(urllib.request.urlopen('http://127.0.0.1:$port/metrics').read().decode())"
}
values() { grep "^$1" metrics | sed 's/.* //' | paste -s -d ' '; }
port=$(python3 -c "import socket; s = socket.socket(); s.bind(('', 0)); print(s.getsockname()[1])")
package/usr/bin/prometheus-node-exporter --collector.disable-defaults --collector.textfile \
  --collector.textfile.directory="$work/files" --web.listen-address="127.0.0.1:$port" 2> log &
exporter=$!
for _ in $(seq 50); do scraped > metrics 2> /dev/null && break; sleep 0.1; done
job a.prom 1 5 "Steps."
job b.prom 3 7 "Steps."
scraped > metrics
expect "values of ranks 0 to 3 in both files" "$(values steps_total)" "5 5 7 7"
expect "errors that it shows" "$(values node_textfile_scrape_error)" 0
expect "files that it has read" "$(grep -c '^node_textfile_mtime_seconds' metrics)" 2
job b.prom 3 7 "Steps of the job."
scraped > metrics
expect "values, if the help texts differ" "$(values steps_total)" "5 5"
expect "errors that it shows then" "$(values node_textfile_scrape_error)" 0
expect "lines of its log that tell" "$(grep -c 'error gathering metrics' log)" 2
