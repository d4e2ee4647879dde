#!/bin/sh
# An authority of your own and certificates that it signs, where you have no other: deploy/certificates.sh FOLDER NAME...
# Makes FOLDER/ca.crt and ca.key if they are not there, and for each NAME (a host, or NAME=OTHER,OTHER for further
# names and addresses) FOLDER/NAME.crt and NAME.key. Each is good for localhost too, and for servers and clients alike.
# Run it again with the same names before DAYS (default 365) are over; the servers take the new files up by themselves.
# Keep ca.key away from the machines: who has it can be anybody.
set -eu
folder=${1:?usage: certificates.sh FOLDER NAME...}
shift
days=${DAYS:-365}
umask 077
mkdir -p -- "$folder"
new="-x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -noenc"
if [ ! -e "$folder/ca.key" ] && [ -e "$folder/ca.crt" ]; then
    echo "certificates.sh: $folder/ca.key is missing: put it back, or replace the certificates by new ones of that authority" >&2
    exit 1
fi
command -v openssl >/dev/null || {
    echo "certificates.sh: openssl is not installed" >&2
    exit 1
}
if [ ! -e "$folder/ca.key" ]; then
    # shellcheck disable=SC2086  # Options are words.
    openssl req $new -days 3650 -subj "/CN=goodput authority" -keyout "$folder/ca.key" -out "$folder/ca.crt" \
        -addext basicConstraints=critical,CA:TRUE,pathlen:0 -addext keyUsage=critical,keyCertSign,cRLSign 2>/dev/null
    chmod 644 "$folder/ca.crt"
fi
for given; do
    name=${given%%=*}
    names="DNS:$name,DNS:localhost,IP:127.0.0.1"
    case $given in
    *=*) for other in $(printf %s "${given#*=}" | tr ',' ' '); do
        case $other in
        *[!0-9.]*) names="$names,DNS:$other" ;;
        *) names="$names,IP:$other" ;;
        esac
    done ;;
    esac
    # Beside the old pair first, so that a server never finds a half-written file.
    # shellcheck disable=SC2086
    openssl req $new -days "$days" -subj "/CN=$name" -CA "$folder/ca.crt" -CAkey "$folder/ca.key" \
        -keyout "$folder/$name.key.new" -out "$folder/$name.crt.new" -addext basicConstraints=critical,CA:FALSE \
        -addext extendedKeyUsage=serverAuth,clientAuth -addext "subjectAltName=$names" 2>/dev/null
    chmod 644 "$folder/$name.crt.new"
    mv -- "$folder/$name.key.new" "$folder/$name.key"
    mv -- "$folder/$name.crt.new" "$folder/$name.crt"
    echo "$folder/$name.crt: $names"
done
