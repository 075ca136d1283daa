#!/bin/sh
# Fetches the crontabs that Debian's packages bring, into the folder that is named. What is there already is kept.
set -eu
into=$1
mkdir -p "$into"
cd "$into"
packages="anacron certbot mdadm sysstat php-common logcheck popularity-contest cron-daemon-common e2fsprogs amavisd-new awstats \
    munin-node mailman3 rsnapshot debsums atop ntpsec logrotate"
if [ ! -e complete ]; then
    if [ "$(id -u)" = 0 ] && ! apt-cache show anacron >/dev/null 2>&1; then
        apt-get update -qq
    fi
    for package in $packages; do
        # A package may be gone from a release; that enough are left is for the test to say.
        apt-get download -qq "$package" >/dev/null 2>&1 || echo "no package $package" >&2
    done
    for file in *.deb; do
        [ -e "$file" ] || continue
        package=${file%%_*}
        mkdir -p unpacked
        dpkg-deb --fsys-tarfile "$file" | tar -x -C unpacked ./etc/cron.d ./etc/crontab 2>/dev/null || true
        for crontab in unpacked/etc/crontab unpacked/etc/cron.d/*; do
            [ -f "$crontab" ] || continue
            case $crontab in
            */.placeholder) continue ;;
            esac
            mkdir -p "$package"
            cp "$crontab" "$package/$(basename "$crontab")"
        done
        rm -rf unpacked "$file"
    done
    touch complete
fi
