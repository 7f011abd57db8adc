"""The web page: plain files for a browser, the same in the service and in an exported file.

bundle       the page as one file: modules, styles and data inline

There is no build step: the service joins `js/main.js` and all that it imports into one script when
it starts. `main.js` starts `app.js`, which takes the place of the shell in `index.html`. Folders of
js are read in the order core, charts, attention, bench, stages, tabs; a module imports only from
its own folder and those before it.
"""
