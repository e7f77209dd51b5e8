# The folders of mirrors outside of an instance's own, which systemd neither makes nor lets it write to
# unless told. Instances of one user may share one.
{ lib }:
name: instance:
let
  handlers = lib.attrValues (instance.settings.handler or { });
  own = path: lib.hasPrefix "/var/lib/queue-worker/${name}/" "${path}/";
in
lib.unique (
  lib.filter (path: !own path) (
    map (handler: handler.mirrors) (lib.filter (handler: handler ? mirrors) handlers)
  )
)
