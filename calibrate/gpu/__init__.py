"""Everything that touches a device, or stands in for one while measuring."""
