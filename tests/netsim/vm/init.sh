#!/bin/busybox sh
# The guest's first process: what a program may expect of a system, then the runner; the console is the first serial port.
/bin/busybox --install -s /bin
export PATH=/bin HOME=/ PYTHONPATH=@SITE@:@GUEST@ PYTHONUNBUFFERED=1
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
for module in /modules/*; do
    insmod "$module" || echo "no $module"
done
ip link set lo up
stty -F /dev/ttyS1 raw
echo "guest: $(uname -r), up $(cut -d' ' -f1 /proc/uptime) s, clock $(cat /sys/devices/system/clocksource/clocksource0/current_clocksource)"
@PYTHON@ @GUEST@/runner.py > /dev/console 2>&1
sync
poweroff -f
