"""The web page: the same files for the service and for an exported file, without a build step.

bundle       the page as one file: modules, styles and data inline

`index.html` is the frame and `app.js` its entry point; read on in the order of its imports.
"""
