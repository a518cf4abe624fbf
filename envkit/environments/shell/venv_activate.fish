# Enter a virtual environment and the modules that it is on top of, in fish:
#   source DIR/bin/activate.fish
# 'deactivate' leaves them. A line before this one sets envkit_venv, the folder.

if functions -q deactivate
    deactivate
end
$envkit_venv/bin/envkit activate --shell fish $envkit_venv | source
set -e envkit_venv
if functions -q envkit_deactivate
    function deactivate
        functions -e deactivate
        envkit_deactivate
    end
else
    false
end
