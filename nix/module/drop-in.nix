# The drop-in that carries the credentials of one instance.
#
# In an LXC or Incus guest a generated drop-in, zzz-lxc-service.conf, empties LoadCredential= of every
# service. Drop-ins of all directories are applied in the order of their file names, so this one has
# the last word.
{ lib, credentials }:
lib.concatLines (
  [
    "[Service]"
    "LoadCredential="
  ]
  ++ lib.mapAttrsToList (id: path: "LoadCredential=${id}:${toString path}") credentials
)
