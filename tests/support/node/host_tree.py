"""Files of mounts, Lustre, NUMA and PCI in a fixture tree."""

from support.node.storage_tree import LLITE_OLD, MOUNTINFO, MOUNTSTATS

FILES = {
    "proc/self/mountinfo": MOUNTINFO,
    "proc/self/mountstats": MOUNTSTATS,
    "proc/1/mountinfo": MOUNTINFO.replace("/data", "/other").replace("0:50", "0:77"),
    "proc/1/mountstats": MOUNTSTATS.replace("/data", "/other"),
    "proc/fs/lustre/llite/a-ffff88003b2d8000/stats": LLITE_OLD,
    "sys/devices/system/node/node0/meminfo": "Node 0 MemTotal: 5 kB\n",
    "sys/devices/system/node/node0/numastat": "numa_hit 5\n",
    "sys/devices/system/node/node0/cpulist": "0-3\n",
    "sys/class/net/eth0/device/numa_node": "0\n",
    "sys/bus/pci/devices/0000:3b:00.0/class": "0x030200\n",
    "sys/bus/pci/devices/0000:3b:00.0/vendor": "0x10de\n",
    "sys/bus/pci/devices/0000:3b:00.0/numa_node": "0\n",
}
