"""The web page: plain files for a browser, the same in the service and in an exported file.

bundle       the page as one file: modules, styles and data inline

There is no build step: `index.html` loads `js/main.js`, which starts `js/app.js`. The folders of
js are read in the order core, charts, attention, bench, stages, tabs; a module imports only from
its own folder and those before it.
"""
